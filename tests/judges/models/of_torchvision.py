"""torchvision's architectures, shrunk."""

from __future__ import annotations

import torch
import torchvision.models as tv
from torch import nn
from torchvision.models import detection, segmentation, video
from torchvision.models import swin_transformer as st
from torchvision.models import vision_transformer as vt
from torchvision.models.alexnet import AlexNet  # the functions of the same name hide these modules
from torchvision.models.densenet import DenseNet
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.models.googlenet import GoogLeNet
from torchvision.models.maxvit import MaxVit
from torchvision.models.squeezenet import SqueezeNet
from torchvision.models.video.s3d import S3D

from models.architectures import Architecture, any_loss, class_loss, images, pixel_loss, sum_of_losses


def architectures():
    S = []

    def add(name, f, h=64, inp=None, loss=None, n=10, b=2, tags=()):
        def build():
            m = f()
            return m, (inp() if inp else (images(b, h),)), (loss or class_loss(n, b))

        S.append(Architecture("torchvision", name, build, tags))

    def small_vgg(key, bn):
        m = tv.vgg.VGG(nn.Sequential(), num_classes=1, init_weights=False)
        m.features = tv.vgg.make_layers([c if c == "M" else c // 8 for c in tv.vgg.cfgs[key]], batch_norm=bn)
        m.classifier = nn.Sequential(nn.Linear(64 * 49, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10))
        return m

    def alex():
        m = AlexNet(num_classes=10)
        m.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(256 * 36, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, 10)
        )
        return m

    R = tv.resnet.ResNet
    B, K = tv.resnet.BasicBlock, tv.resnet.Bottleneck
    add("alexnet", alex)
    add("vgg11", lambda: small_vgg("A", False))
    add("vgg13_bn", lambda: small_vgg("B", True))
    add("resnet18", lambda: R(B, [2, 2, 2, 2], 10))
    add("resnet18_zero_init", lambda: R(B, [1, 1, 1, 1], 10, zero_init_residual=True))
    add("resnet50_short", lambda: R(K, [1, 1, 1, 1], 10))
    add("resnext_short", lambda: R(K, [1, 1, 1, 1], 10, groups=32, width_per_group=4))
    add("wide_resnet_short", lambda: R(K, [1, 1, 1, 1], 10, width_per_group=128))
    add("densenet", lambda: DenseNet(8, (2, 3, 2, 2), 16, num_classes=10, drop_rate=0.1))
    add(
        "densenet_checkpointed",
        lambda: DenseNet(8, (2, 3, 2, 2), 16, num_classes=10, memory_efficient=True),
        tags=["checkpoint"],
    )
    add("squeezenet1_1", lambda: SqueezeNet("1_1", 10))
    add("mobilenet_v2", lambda: tv.mobilenetv2.mobilenet_v2(num_classes=10, width_mult=0.25))
    add("mobilenet_v3_small", lambda: tv.mobilenetv3.mobilenet_v3_small(num_classes=10))
    add("mobilenet_v3_large", lambda: tv.mobilenetv3.mobilenet_v3_large(num_classes=10))
    add("mnasnet0_5", lambda: tv.mnasnet.mnasnet0_5(num_classes=10))
    add("shufflenet_v2_x0_5", lambda: tv.shufflenetv2.shufflenet_v2_x0_5(num_classes=10))
    add("efficientnet_b0", lambda: tv.efficientnet.efficientnet_b0(num_classes=10))
    add(
        "efficientnet_v2_short",
        lambda: tv.efficientnet._efficientnet(
            [
                tv.efficientnet.FusedMBConvConfig(1, 3, 1, 8, 8, 1),
                tv.efficientnet.FusedMBConvConfig(4, 3, 2, 8, 16, 2),
                tv.efficientnet.MBConvConfig(4, 3, 2, 16, 24, 2),
            ],
            0.2,
            64,
            None,
            False,
            num_classes=10,
        ),
    )
    add("regnet_y_400mf", lambda: tv.regnet.regnet_y_400mf(num_classes=10))
    add("regnet_x_400mf", lambda: tv.regnet.regnet_x_400mf(num_classes=10))
    add("googlenet", lambda: GoogLeNet(num_classes=10, aux_logits=True, init_weights=False), 96)
    add("inception_v3", lambda: tv.inception.Inception3(num_classes=10, aux_logits=False, init_weights=False), 96)
    add(
        "convnext",
        lambda: tv.convnext.ConvNeXt(
            [tv.convnext.CNBlockConfig(16, 32, 2), tv.convnext.CNBlockConfig(32, None, 2)],
            stochastic_depth_prob=0.2,
            num_classes=10,
        ),
    )
    add(
        "vit", lambda: vt.VisionTransformer(32, 8, 2, 4, 32, 64, dropout=0.1, attention_dropout=0.1, num_classes=10), 32
    )
    add(
        "swin",
        lambda: st.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.2, num_classes=10),
    )
    add(
        "swin_v2",
        lambda: st.SwinTransformer(
            [4, 4],
            16,
            [2, 2],
            [2, 4],
            [4, 4],
            stochastic_depth_prob=0.2,
            num_classes=10,
            block=st.SwinTransformerBlockV2,
            downsample_layer=st.PatchMergingV2,
        ),
    )
    add("maxvit", lambda: MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.2, num_classes=10))
    bb = dict(weights=None, weights_backbone=None)
    add("lraspp_mobilenet_v3", lambda: segmentation.lraspp_mobilenet_v3_large(num_classes=5, **bb), loss=pixel_loss)
    add(
        "deeplabv3_mobilenet_v3",
        lambda: segmentation.deeplabv3_mobilenet_v3_large(num_classes=5, aux_loss=True, **bb),
        loss=pixel_loss,
    )
    add("fcn_resnet50", lambda: segmentation.fcn_resnet50(num_classes=5, aux_loss=True, **bb), 32, loss=pixel_loss)

    def det(keypoints=False, h=96):
        def f():
            t = []
            for _ in range(2):
                d = dict(
                    boxes=torch.tensor([[8.0, 10.0, 50.0, 60.0], [30.0, 20.0, 80.0, 70.0]]),
                    labels=torch.tensor([1, 2 - keypoints]),
                )
                m = torch.zeros(2, h, h, dtype=torch.uint8)
                m[0, 10:60, 8:50] = 1
                m[1, 20:70, 30:80] = 1
                d["masks"] = m
                d["keypoints"] = torch.cat([torch.rand(2, 17, 2) * 40 + 20, torch.ones(2, 17, 1)], -1)
                t.append(d)
            return [torch.rand(3, h, h), torch.rand(3, h, h)], t

        return f

    small = dict(min_size=96, max_size=128, **bb)
    add(
        "fasterrcnn_mobilenet_v3",
        lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(num_classes=4, **small),
        inp=det(),
        loss=sum_of_losses,
        tags=["detection"],
    )

    def tiny_rcnn(cls, **kw):
        fr, mr, kr = detection.faster_rcnn, detection.mask_rcnn, detection.keypoint_rcnn
        body = R(K, [1, 1, 1, 1])
        n = 4 if cls is detection.MaskRCNN else 2
        if cls is detection.MaskRCNN:
            kw.update(mask_head=mr.MaskRCNNHeads(256, (16, 16), 1), mask_predictor=mr.MaskRCNNPredictor(16, 16, n))
        else:
            kw.update(
                keypoint_head=kr.KeypointRCNNHeads(256, (16, 16)), keypoint_predictor=kr.KeypointRCNNPredictor(16, 17)
            )
        return cls(
            _resnet_fpn_extractor(body, 5),
            box_head=fr.TwoMLPHead(256 * 49, 32),
            box_predictor=fr.FastRCNNPredictor(32, n),
            min_size=96,
            max_size=128,
            rpn_pre_nms_top_n_train=50,
            rpn_post_nms_top_n_train=16,
            box_batch_size_per_image=8,
            **kw,
        )

    add("maskrcnn_resnet_fpn", lambda: tiny_rcnn(detection.MaskRCNN), inp=det(), loss=sum_of_losses, tags=["detection"])
    add(
        "keypointrcnn_resnet_fpn",
        lambda: tiny_rcnn(detection.KeypointRCNN),
        inp=det(True),
        loss=sum_of_losses,
        tags=["detection"],
    )
    add(
        "retinanet_resnet50_fpn",
        lambda: detection.retinanet_resnet50_fpn(num_classes=4, **small),
        inp=det(),
        loss=sum_of_losses,
        tags=["detection"],
    )
    add(
        "fcos_resnet50_fpn",
        lambda: detection.fcos_resnet50_fpn(num_classes=4, **small),
        inp=det(),
        loss=sum_of_losses,
        tags=["detection"],
    )
    add(
        "ssdlite320_mobilenet_v3",
        lambda: detection.ssdlite320_mobilenet_v3_large(num_classes=4, **bb),
        inp=det(),
        loss=sum_of_losses,
        tags=["detection"],
    )
    clip = lambda t, h: lambda: (torch.randn(2, 3, t, h, h),)
    add(
        "r3d_short",
        lambda: video.resnet.VideoResNet(
            video.resnet.BasicBlock,
            [video.resnet.Conv3DSimple] * 4,
            [1, 1, 1, 1],
            video.resnet.BasicStem,
            num_classes=10,
        ),
        inp=clip(4, 32),
    )
    add(
        "r2plus1d_short",
        lambda: video.resnet.VideoResNet(
            video.resnet.BasicBlock,
            [video.resnet.Conv2Plus1D] * 4,
            [1, 1, 1, 1],
            video.resnet.R2Plus1dStem,
            num_classes=10,
        ),
        inp=clip(2, 24),
    )
    add(
        "mc3_short",
        lambda: video.resnet.VideoResNet(
            video.resnet.BasicBlock,
            [video.resnet.Conv3DSimple] + [video.resnet.Conv3DNoTemporal] * 3,
            [1, 1, 1, 1],
            video.resnet.BasicStem,
            num_classes=10,
        ),
        inp=clip(4, 32),
    )

    def s3d():
        m = S3D(num_classes=10)
        m.avgpool = nn.AdaptiveAvgPool3d(1)  # its own pool wants 224 x 224
        return m

    add("s3d", s3d, inp=clip(8, 48))
    add(
        "swin3d",
        lambda: video.swin_transformer.SwinTransformer3d(
            [2, 4, 4], 16, [2, 2], [2, 4], [2, 4, 4], stochastic_depth_prob=0.2, num_classes=10
        ),
        inp=clip(4, 32),
    )

    def mvit():
        c = [
            video.mvit.MSBlockConfig(
                num_heads=h,
                input_channels=i,
                output_channels=o,
                kernel_q=[3, 3, 3],
                kernel_kv=[3, 3, 3],
                stride_q=q,
                stride_kv=kv,
            )
            for h, i, o, q, kv in [(1, 16, 32, [1, 1, 1], [1, 4, 4]), (2, 32, 32, [1, 2, 2], [1, 2, 2])]
        ]
        return video.mvit.MViT(
            (32, 32),
            4,
            c,
            residual_pool=True,
            residual_with_cls_embed=False,
            rel_pos_embed=True,
            proj_after_attn=True,
            num_classes=10,
        )

    add("mvit_v2", mvit, inp=clip(4, 32))
    add(
        "raft_small",
        lambda: tv.optical_flow.raft_small(),
        inp=lambda: (images(1, 128), images(1, 128), 3),
        loss=any_loss,
    )
    return S

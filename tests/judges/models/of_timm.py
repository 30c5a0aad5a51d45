"""timm's architectures, shrunk."""

from __future__ import annotations

import sys
from ast import literal_eval

import timm

from models.architectures import Architecture, class_loss, images

# name:image size:arguments, where a semicolon stands for the comma inside a value
TIMM = """resnet10t resnet18 resnetv2_18 seresnext26t_32x4d ecaresnext26t_32x4d resnest14d skresnet18 res2net50_14w_8s:64 bat_resnext26ts:256
efficientnet_lite0 tf_efficientnetv2_b0 efficientnet_b0 mobilenetv3_small_050 mobilenetv4_conv_small_035 mnasnet_small ghostnet_050 tinynet_e lcnet_035 fbnetc_100 hardcorenas_a rexnetr_100
regnetx_002 regnety_002 regnetz_005 dla46x_c ese_vovnet19b_slim_dw hrnet_w18_small cs3darknet_focus_s densenet121 selecsls42 dpn48b nf_regnet_b0 nf_resnet26 eca_nfnet_l0
convnext_atto convnextv2_atto convmixer_768_32:28 vit_tiny_patch16_224::img_size=64,depth=3,embed_dim=48 vit_relpos_small_patch16_224::img_size=64,depth=2,embed_dim=48,num_heads=3
vit_small_patch16_36x1_224::img_size=64,depth=2,embed_dim=48,num_heads=3,init_values=0.1 deit_tiny_distilled_patch16_224::img_size=64,depth=2 deit3_small_patch16_224::img_size=64,depth=2
beit_base_patch16_224::img_size=64,depth=2,embed_dim=48,num_heads=3 beitv2_base_patch16_224::img_size=64,depth=2,embed_dim=48,num_heads=3 eva02_tiny_patch14_224:56:img_size=56,depth=2
xcit_nano_12_p16_224::img_size=64,depth=2 cait_xxs24_224::img_size=64,depth=2 coat_lite_tiny::img_size=64 crossvit_tiny_240 convit_tiny::img_size=64,depth=3 levit_128s:224
mixer_s32_224::img_size=64 resmlp_12_224::img_size=64 gmlp_ti16_224::img_size=64 gmixer_12_224::img_size=64
pit_ti_224::img_size=64 tnt_s_legacy_patch16_224::img_size=64,depth=2 twins_svt_small::img_size=64 swin_tiny_patch4_window7_224::img_size=64,window_size=4,embed_dim=24,depths=(2;2),num_heads=(2;4)
swinv2_tiny_window8_256::img_size=64,embed_dim=24,depths=(2;2),num_heads=(2;4) swinv2_cr_tiny_ns_224::img_size=64,embed_dim=24,depths=(2;2),num_heads=(2;4) maxvit_rmlp_pico_rw_256::img_size=64 coatnet_pico_rw_224::img_size=64
mobilevit_xxs mobilevitv2_050 edgenext_xx_small efficientformer_l1:224 efficientformerv2_s0:224 efficientvit_b0 efficientvit_m0:224 fastvit_t8 focalnet_tiny_srf poolformer_s12
pvt_v2_b0 repvgg_a0 repvit_m0_9 repghostnet_050 sequencer2d_s:64:img_size=64 visformer_tiny:224 volo_d1_224:64:img_size=64 davit_tiny::embed_dims=(24;48),depths=(1;1),num_heads=(2;3) gcvit_xxtiny:224 hiera_tiny_224:64:img_size=64
inception_next_atto caformer_s18 convformer_s18 mambaout_femto nest_tiny:224 rdnet_tiny starnet_s1 tiny_vit_5m_224:224 shvit_s1 fasternet_t0 swiftformer_xs inception_v3:96 xception41:48 naflexvit_base_patch16_gap::depth=2,embed_dim=48,num_heads=3"""


def architectures():
    S = []
    known = set(timm.list_models())
    for w in TIMM.split():
        name, _, rest = w.partition(":")
        size, _, kws = rest.partition(":")
        if name not in known:
            print("timm has no", name, file=sys.stderr)
            continue
        kw = {}
        for p in filter(None, kws.split(",")):
            k, v = p.split("=")
            kw[k] = literal_eval(v.replace(";", ","))
        h = int(size or kw.get("img_size") or (240 if "crossvit" in name else 64))

        def build(name=name, kw=kw, h=h):
            m = timm.create_model(name, pretrained=False, num_classes=10, drop_rate=0.1, **kw)
            return m, (images(2, h),), class_loss(10)

        S.append(Architecture("timm", name, build))
    return S

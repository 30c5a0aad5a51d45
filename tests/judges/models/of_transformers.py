"""transformers' architectures, shrunk."""

from __future__ import annotations

import importlib.util

import torch
import transformers as T

from models.architectures import Architecture, any_loss, images, tokens


def architectures():
    S = []
    BASE = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=99,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    ENC = dict(BASE, intermediate_size=64)
    DEC = dict(BASE, intermediate_size=64, num_key_value_heads=2, head_dim=8)
    MOE = dict(
        DEC,
        moe_intermediate_size=32,
        num_local_experts=4,
        num_experts=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        shared_expert_intermediate_size=32,
    )
    S2S = dict(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        vocab_size=99,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    T5 = dict(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        vocab_size=99,
        decoder_start_token_id=0,
    )
    VIS = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )

    def cfg(mt, kw):
        return T.AutoConfig.for_model(mt, **kw)

    def add(name, build, tags=()):
        S.append(Architecture("transformers", name, build, tags))

    def lm(mt, base, auto="AutoModelForCausalLM", inp=None, tags=(), name=None, ckpt=False, **kw):
        def build():
            c = cfg(mt, {**base, **kw})
            m = getattr(T, auto).from_config(c) if auto.startswith("AutoModel") else getattr(T, auto)(c)
            if ckpt:
                m.gradient_checkpointing_enable({"use_reentrant": ckpt == "reentrant"})
            if inp:
                x = inp()
            else:
                i = tokens()
                x = dict(input_ids=i, attention_mask=torch.ones_like(i), labels=i.clone())
            return m, x, any_loss

        add(name or mt, build, tags)

    # --- decoders
    for mt, kw in dict(
        gpt2={},
        gpt_neo=dict(attention_types=[[["global", "local"], 1]], window_size=4),
        gpt_neox={},
        gptj=dict(rotary_dim=4),
        gpt_bigcode={},
        codegen=dict(rotary_dim=4),
        bloom={},
        opt=dict(ffn_dim=64, word_embed_proj_dim=32),
        xglm=dict(ffn_dim=64, d_model=32, num_layers=2, attention_heads=4),
        biogpt=dict(intermediate_size=64),
        ctrl=dict(dff=64),
        mpt=dict(d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
        falcon=dict(new_decoder_architecture=False),
        persimmon=dict(intermediate_size=64),
    ).items():
        lm(mt, BASE, **kw)
    lm("openai-gpt", BASE, afn="gelu")
    for mt, kw in dict(
        llama={},
        mistral=dict(sliding_window=8),
        qwen2={},
        qwen3={},
        gemma={},
        gemma2=dict(sliding_window=8),
        gemma3_text=dict(sliding_window=8),
        phi={},
        phi3=dict(original_max_position_embeddings=64),
        stablelm={},
        olmo={},
        olmo2={},
        starcoder2={},
        cohere={},
        cohere2={},
        granite={},
        glm=dict(partial_rotary_factor=0.5),
        glm4=dict(partial_rotary_factor=0.5),
        nemotron={},
        smollm3={},
        helium={},
        diffllama={},
    ).items():
        lm(mt, DEC, **kw)
    lm("modernbert-decoder", DEC)
    for mt, kw in dict(
        mixtral={},
        qwen2_moe=dict(decoder_sparse_step=1),
        qwen3_moe=dict(decoder_sparse_step=1),
        gpt_oss=dict(sliding_window=8),
        olmoe={},
        phimoe={},
        granitemoe={},
        deepseek_v3=dict(
            head_dim=4,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=8,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            n_shared_experts=1,
            num_key_value_heads=4,
        ),
        qwen3_next=dict(
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention"],
        ),
    ).items():
        lm(mt, MOE, tags=["moe"], **kw)
    lm("mamba", BASE, state_size=4)
    lm("mamba2", BASE, state_size=4, num_heads=8, head_dim=8, n_groups=1, chunk_size=8)
    lm("falcon_mamba", BASE, state_size=4)
    lm("recurrent_gemma", DEC, lru_width=32, attention_window_size=8, block_types=["recurrent", "attention"])
    lm("rwkv", BASE, attention_hidden_size=32, intermediate_size=64, context_length=64)
    lm(
        "jamba",
        MOE,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    )
    lm("lfm2", DEC, layer_types=["conv", "full_attention"], block_ff_dim=64)
    lm("llama", DEC, name="llama_checkpointed", ckpt="non-reentrant", tags=["checkpoint"])
    lm("gpt2", BASE, name="gpt2_checkpointed_reentrant", ckpt="reentrant", tags=["checkpoint"])
    lm("llama", DEC, name="llama_eager_attention", attn_implementation="eager")
    # --- encoders
    for mt, kw in {
        "bert": {},
        "roberta": {},
        "albert": dict(embedding_size=16),
        "distilbert": dict(hidden_dim=64),
        "electra": dict(embedding_size=16),
        "deberta": dict(relative_attention=True, pos_att_type=["c2p", "p2c"]),
        "deberta-v2": dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
        "mpnet": {},
        "mobilebert": dict(embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
        "squeezebert": dict(embedding_size=32),
        "convbert": dict(embedding_size=32),
        "big_bird": dict(block_size=4, num_random_blocks=1),
        "longformer": dict(attention_window=4),
        "nystromformer": dict(num_landmarks=4, segment_means_seq_len=16),
        "fnet": dict(tpu_short_seq_length=16),
        "ibert": dict(quant_mode=False),
        "modernbert": dict(local_attention=4),
        "xlm": dict(emb_dim=32, n_layers=2, n_heads=4, n_words=99),
        "roformer": dict(embedding_size=32),
        "rembert": dict(input_embedding_size=16, output_embedding_size=16),
        "megatron-bert": {},
        "layoutlm": {},
        "esm": dict(mask_token_id=3, position_embedding_type="rotary"),
        "yoso": dict(use_expectation=True),
        "xmod": dict(default_language="en_XX", languages=["en_XX"]),
        "camembert": {},
        "ernie": {},
    }.items():
        x = (
            (lambda: (lambda i: dict(input_ids=i, labels=i.clone()))(tokens(length=32)))
            if mt == "big_bird"
            else None
        )
        if mt == "fnet":
            lm(
                mt,
                ENC,
                "AutoModelForMaskedLM",
                inp=lambda: (lambda i: dict(input_ids=i, labels=i.clone()))(tokens()),
                **kw,
            )
        else:
            lm(mt, ENC, "AutoModelForMaskedLM", inp=x, **kw)
    lm(
        "xlnet",
        dict(d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=99),
        "AutoModelForSequenceClassification",
        inp=lambda: dict(input_ids=tokens(), labels=torch.tensor([0, 1])),
    )
    lm(
        "funnel",
        dict(block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=64, vocab_size=99),
        "AutoModelForMaskedLM",
    )
    lm(
        "bert",
        ENC,
        "AutoModelForQuestionAnswering",
        name="bert_qa",
        inp=lambda: dict(input_ids=tokens(), start_positions=torch.tensor([1, 2]), end_positions=torch.tensor([3, 4])),
    )
    lm(
        "roberta",
        ENC,
        "AutoModelForTokenClassification",
        name="roberta_tokens",
        inp=lambda: (lambda i: dict(input_ids=i, labels=i % 2))(tokens()),
    )
    lm(
        "canine",
        dict(ENC, num_hash_buckets=64, local_transformer_stride=16, downsampling_rate=4),
        "AutoModelForSequenceClassification",
        inp=lambda: dict(input_ids=tokens(length=32), labels=torch.tensor([0, 1])),
    )
    # --- encoder-decoders
    for mt in ("bart", "mbart", "pegasus", "blenderbot", "blenderbot-small", "m2m_100", "marian", "plbart", "mvp"):
        lm(mt, S2S, "AutoModelForSeq2SeqLM", **(dict(forced_bos_token_id=None) if mt in ("bart", "mvp") else {}))
    lm("pegasus_x", S2S, "AutoModelForSeq2SeqLM", block_size=8, num_global_tokens=4)
    lm(
        "led",
        S2S,
        "AutoModelForSeq2SeqLM",
        attention_window=4,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    )
    lm("bigbird_pegasus", S2S, "AutoModelForSeq2SeqLM", attention_type="original_full")
    for mt, kw in {
        "t5": {},
        "mt5": {},
        "umt5": {},
        "longt5": dict(local_radius=4, global_block_size=4, encoder_attention_type="transient-global"),
        "switch_transformers": dict(
            num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, expert_capacity=16
        ),
    }.items():
        lm(mt, T5, "AutoModelForSeq2SeqLM", **kw)
    lm(
        "prophetnet",
        dict(
            hidden_size=32,
            num_encoder_layers=2,
            num_decoder_layers=2,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            vocab_size=99,
            max_position_embeddings=64,
            pad_token_id=0,
        ),
        "AutoModelForSeq2SeqLM",
    )
    # --- vision
    pv = lambda h=32, n=10: lambda: dict(pixel_values=images(2, h), labels=torch.arange(2) % n)
    IC = "AutoModelForImageClassification"
    for mt, kw in {
        "vit": {},
        "beit": dict(use_relative_position_bias=True),
        "dinov2": {},
        "vit_msn": {},
        "data2vec-vision": dict(use_relative_position_bias=True),
    }.items():
        lm(mt, VIS, IC, inp=pv(), **kw)
    lm("deit", VIS, "DeiTForImageClassification", inp=pv())
    for mt in ("swin", "swinv2"):
        lm(
            mt,
            dict(
                image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10
            ),
            IC,
            inp=pv(),
        )
    lm(
        "focalnet",
        dict(
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[1, 1],
            hidden_sizes=[16, 32],
            focal_levels=[2, 2],
            focal_windows=[3, 3],
            num_labels=10,
        ),
        IC,
        inp=pv(),
    )
    for mt in ("convnext", "convnextv2"):
        lm(
            mt,
            dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=10, drop_path_rate=0.1),
            IC,
            inp=pv(64),
        )
    lm(
        "resnet",
        dict(embedding_size=8, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_labels=10),
        IC,
        inp=pv(64),
        name="hf_resnet",
    )
    lm(
        "regnet",
        dict(embedding_size=8, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], groups_width=8, num_labels=10),
        IC,
        inp=pv(64),
    )
    lm(
        "bit",
        dict(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], num_groups=4, num_labels=10),
        IC,
        inp=pv(64),
    )
    lm(
        "efficientnet",
        dict(width_coefficient=0.25, depth_coefficient=0.3, image_size=64, hidden_dim=320, num_labels=10),
        IC,
        inp=pv(64),
    )
    lm(
        "mobilenet_v2",
        dict(depth_multiplier=0.25, image_size=64, num_labels=10),
        IC,
        inp=pv(64),
        name="hf_mobilenet_v2",
    )
    lm(
        "mobilevit",
        dict(
            image_size=64,
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 48],
            num_attention_heads=4,
            num_labels=10,
        ),
        IC,
        inp=pv(64),
    )
    lm("poolformer", dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_labels=10), IC, inp=pv(64))
    lm(
        "pvt",
        dict(
            image_size=64,
            hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4],
            num_labels=10,
        ),
        IC,
        inp=pv(64),
    )
    lm("cvt", dict(embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3], num_labels=10), IC, inp=pv(64))
    lm(
        "levit",
        dict(
            image_size=64,
            hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 3, 4],
            depths=[1, 1, 1],
            key_dim=[8, 8, 8],
            num_labels=10,
        ),
        "LevitForImageClassification",
        inp=pv(64),
    )
    lm(
        "segformer",
        dict(
            hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4],
            decoder_hidden_size=16,
            num_labels=4,
        ),
        "SegformerForSemanticSegmentation",
        inp=lambda: dict(pixel_values=images(2, 64), labels=torch.randint(0, 4, (2, 64, 64))),
    )
    lm(
        "vit_mae",
        dict(
            VIS,
            decoder_hidden_size=32,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=64,
        ),
        "ViTMAEForPreTraining",
        inp=lambda: dict(pixel_values=images(2, 32)),
    )
    lm(
        "videomae",
        dict(VIS, num_frames=4, tubelet_size=2),
        "AutoModelForVideoClassification",
        inp=lambda: dict(pixel_values=torch.randn(2, 4, 3, 32, 32), labels=torch.tensor([0, 1])),
    )
    lm(
        "timesformer",
        dict(VIS, num_frames=4),
        "AutoModelForVideoClassification",
        inp=lambda: dict(pixel_values=torch.randn(2, 4, 3, 32, 32), labels=torch.tensor([0, 1])),
    )
    lm(
        "yolos",
        dict(VIS, image_size=[32, 32], num_detection_tokens=8, num_labels=3),
        "YolosForObjectDetection",
        inp=lambda: dict(pixel_values=images(2, 32)),
    )
    lm(
        "dpt",
        dict(
            VIS,
            num_hidden_layers=4,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=8,
            is_hybrid=False,
        ),
        "DPTForDepthEstimation",
        inp=lambda: dict(pixel_values=images(2, 32)),
    )

    # --- two towers, audio, time series, others
    def clip(cls, conf, tcls, vcls):
        def build():
            t = dict(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                vocab_size=99,
                max_position_embeddings=32,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                projection_dim=16,
            )
            v = dict(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
                projection_dim=16,
            )
            c = getattr(T, conf)(text_config=t, vision_config=v, projection_dim=16)
            return (
                getattr(T, cls)(c),
                dict(input_ids=tokens(length=12), pixel_values=images(2, 32), return_loss=True),
                any_loss,
            )

        return build

    add("clip", clip("CLIPModel", "CLIPConfig", 0, 0))
    add("siglip", clip("SiglipModel", "SiglipConfig", 0, 0))
    add("blip", clip("BlipModel", "BlipConfig", 0, 0))
    W2V = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16, 16),
        conv_kernel=(10, 3, 3),
        conv_stride=(5, 2, 2),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        vocab_size=20,
        mask_time_length=2,
        mask_time_prob=0.2,
        num_codevectors_per_group=8,
        codevector_dim=16,
        proj_codevector_dim=16,
        pad_token_id=0,
    )
    wav = lambda: dict(input_values=torch.randn(2, 1600), labels=torch.randint(3, 20, (2, 6)))
    lm("wav2vec2", W2V, "AutoModelForCTC", inp=wav)
    lm("hubert", W2V, "AutoModelForCTC", inp=wav)
    lm("wavlm", W2V, "AutoModelForCTC", inp=wav)
    lm("unispeech", W2V, "AutoModelForCTC", inp=wav)
    lm("sew", dict(W2V, squeeze_factor=2), "AutoModelForCTC", inp=wav)
    lm("wav2vec2-conformer", W2V, "AutoModelForCTC", inp=wav)
    lm(
        "whisper",
        dict(
            S2S,
            num_mel_bins=16,
            max_source_positions=32,
            max_target_positions=32,
            mask_time_prob=0.1,
            apply_spec_augment=True,
            mask_time_length=2,
            decoder_start_token_id=2,
        ),
        "WhisperForConditionalGeneration",
        inp=lambda: dict(input_features=torch.randn(2, 16, 64), labels=tokens(length=8)),
    )
    lm(
        "speech_to_text",
        dict(
            S2S,
            input_feat_per_channel=16,
            conv_channels=32,
            num_conv_layers=2,
            max_source_positions=64,
            max_target_positions=32,
        ),
        "Speech2TextForConditionalGeneration",
        inp=lambda: dict(input_features=torch.randn(2, 40, 16), labels=tokens(length=8)),
    )
    lm(
        "audio-spectrogram-transformer",
        dict(VIS, max_length=32, num_mel_bins=16, frequency_stride=4, time_stride=4),
        "AutoModelForAudioClassification",
        inp=lambda: dict(input_values=torch.randn(2, 32, 16), labels=torch.tensor([0, 1])),
        name="ast",
    )
    TS = dict(
        prediction_length=4,
        context_length=8,
        lags_sequence=[1, 2],
        num_time_features=1,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_parallel_samples=4,
    )
    ts = lambda: dict(
        past_values=torch.rand(2, 10),
        past_time_features=torch.rand(2, 10, 1),
        past_observed_mask=torch.ones(2, 10),
        future_values=torch.rand(2, 4),
        future_time_features=torch.rand(2, 4, 1),
    )
    lm("time_series_transformer", TS, "TimeSeriesTransformerForPrediction", inp=ts)
    lm("informer", TS, "InformerForPrediction", inp=ts)
    lm("autoformer", dict(TS, moving_average=3, label_length=2), "AutoformerForPrediction", inp=ts)
    lm(
        "patchtst",
        dict(
            num_input_channels=2,
            context_length=16,
            patch_length=4,
            patch_stride=4,
            d_model=16,
            num_attention_heads=2,
            ffn_dim=32,
            num_hidden_layers=1,
            prediction_length=4,
        ),
        "PatchTSTForPrediction",
        inp=lambda: dict(past_values=torch.randn(2, 16, 2), future_values=torch.randn(2, 4, 2)),
    )
    lm(
        "patchtsmixer",
        dict(
            num_input_channels=2,
            context_length=16,
            patch_length=4,
            patch_stride=4,
            d_model=16,
            num_layers=1,
            prediction_length=4,
        ),
        "PatchTSMixerForPrediction",
        inp=lambda: dict(past_values=torch.randn(2, 16, 2), future_values=torch.randn(2, 4, 2)),
    )
    lm(
        "decision_transformer",
        dict(state_dim=5, act_dim=3, hidden_size=32, n_layer=2, n_head=4, max_ep_len=32),
        "DecisionTransformerModel",
        inp=lambda: dict(
            states=torch.randn(2, 6, 5),
            actions=torch.randn(2, 6, 3),
            rewards=torch.randn(2, 6, 1),
            returns_to_go=torch.randn(2, 6, 1),
            timesteps=torch.arange(6).repeat(2, 1),
            attention_mask=torch.ones(2, 6, dtype=torch.long),
        ),
    )

    def llava():
        c = T.LlavaConfig(
            vision_config=dict(
                model_type="clip_vision_model",
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
                projection_dim=16,
            ),
            text_config=dict(DEC, model_type="llama"),
            image_token_index=98,
            image_token_id=98,
            image_seq_length=16,
        )
        i = torch.randint(3, 98, (2, 24))
        i[:, 2:18] = 98
        return (
            T.LlavaForConditionalGeneration(c),
            dict(input_ids=i, pixel_values=images(2, 32), labels=i.clone()),
            any_loss,
        )

    add("llava", llava)

    def detr():
        r = T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], out_features=["stage4"])
        c = T.DetrConfig(
            backbone_config=r,
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_queries=6,
            num_labels=3,
        )
        t = (
            [
                dict(
                    class_labels=torch.tensor([0, 1]), boxes=torch.tensor([[0.5, 0.5, 0.2, 0.3], [0.3, 0.4, 0.2, 0.2]])
                )
                for _ in range(2)
            ]
            if importlib.util.find_spec("scipy")
            else None
        )
        return T.DetrForObjectDetection(c), dict(pixel_values=images(2, 64), labels=t), any_loss

    add("detr", detr, ["detection"])
    return S

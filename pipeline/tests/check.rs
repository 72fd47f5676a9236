//! `mica check` and `mica analyze` as a person meets them: what agrees, what does not, what is refused.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TINY: &str = "tests/delivery/tiny/test_vectors_f64.safetensors";
const INDEX: &str = "tests/delivery/production/production.json";
const VECTORS: &str = "tests/delivery/production/vectors_f64.safetensors";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn mica(words: &str) -> Output {
    let words = words.replace("TINY", TINY).replace("INDEX", INDEX).replace("VECTORS", VECTORS);
    let command =
        Command::new(env!("CARGO_BIN_EXE_mica")).current_dir(root()).args(words.split_whitespace()).output();
    command.unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn said(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

/// Whether the display, which breaks lines and frames them, holds some words.
fn says(o: &Output, words: &str) -> bool {
    let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace() && *c != '│').collect::<String>();
    solid(&said(o)).contains(&solid(words))
}

fn expect(words: &str, status: i32) -> Output {
    let o = mica(words);
    assert_eq!(o.status.code(), Some(status), "mica {words}\n{}{}", out(&o), said(&o));
    o
}

#[test]
fn what_agrees_passes() {
    for words in [
        // the evaluator against captures, states carried
        "check tiny:layer0 --inputs real --steps 20 --rel-l2 1e-12 --skip conv_state,recurrent_state",
        "check tiny:layer3 --inputs real --steps 20 --rel-l2 1e-12 --max-abs 1e-10 --skip k_row,v_row",
        "check tiny:layer3.mixer.full_attention --inputs real --steps 3 --cosine 0.999999999999 --norm-ratio 1e-12 --skip k_row,v_row",
        "check tiny:layer5.moe --inputs real --steps 20 --rel-l2 1e-12 --topk 4",
        "check tiny:layer5.moe.shared_expert --inputs real --steps 2 --max-rel 1e-9 --nan-inf 0",
        "check tiny:layer5.moe.router --inputs real --steps 20 --rel-l2 1e-12 --ulp 1e-3",
        "check tiny:embed --inputs real --steps 20 --equal",
        "check tiny:head --inputs real --steps 20 --rel-l2 1e-12",
        // the same from files, and a label within
        "check qwen3_5_35b_a3b:layer0 --delivery tiny --input TINY:model.layers.0:float_input --steps 20 \
         --expected TINY:model.layers.0:float_output --expected linear_attn=TINY:model.layers.0.linear_attn:float_output \
         --skip conv_state,recurrent_state,expert_ids,router_logits --rel-l2 1e-12",
        // the twin against the evaluator
        "check tiny:layer0 --twin --inputs random --seed 1 --cosine 0.9999 --force-experts",
        "check tiny:layer3 --twin --inputs random --dim ctx_len=0,1,130 --cosine 0.9999 --force-experts",
        "check tiny:layer3 --twin --inputs real --steps 4 --cosine 0.9999 --norm-ratio 0.001 --force-experts",
        "check tiny:head --twin --inputs random --cosine 0.9999",
        "check tiny:layer0.moe.router --twin --inputs random --seed 4 --cosine 0.9999",
        "check tiny:layer0.moe.routed_experts --twin --inputs random --cosine 0.9999",
        "check qwen3_5_35b_a3b:layer0 --delivery tests/delivery/tiny --recipe w4a16 --device qb1 --twin \
         --inputs random --cosine 0.9999 --force-experts",
        "check qwen3_5_35b_a3b:layer3.mixer --config tests/delivery/tiny/config.json --weights random:3 --twin \
         --recipe w4a16 --inputs random --dim ctx_len=2 --cosine 0.999",
    ] {
        let o = expect(words, 0);
        assert!(out(&o).ends_with("\nPASS\n"), "{}", out(&o));
    }
}

#[test]
fn layers_at_the_published_dimensions_agree() {
    for (layer, mixer, states) in
        [(0, "linear_attn", "conv_state,recurrent_state"), (3, "self_attn", "k_row,v_row")]
    {
        let p = format!("model.layers.{layer}");
        let o = expect(
            &format!(
                "check qwen3_5_35b_a3b:layer{layer} --weights generated:INDEX --input INDEX:input.layers.{layer}.hidden \
                 --steps 3 --expected VECTORS:{p}:float_output --expected expert_ids=VECTORS:{p}.mlp.gate:topk_indices \
                 --expected router_logits=VECTORS:{p}.mlp.gate:logits --expected {mixer}=VECTORS:{p}.{mixer}:float_output \
                 --expected mlp=VECTORS:{p}.mlp:float_output --expected mlp.gate=VECTORS:{p}.mlp.gate:topk_weights \
                 --skip {states} --rel-l2 1e-12"
            ),
            0,
        );
        println!("{}", out(&o));
    }
}

/// One thing is wrong in each, and the very predicate that passes above fails.
#[test]
fn what_is_broken_fails_and_the_place_is_named() {
    let layer0 = "--delivery tiny --input hidden=TINY:model.layers.0:float_input \
                  --skip conv_state,recurrent_state,expert_ids,router_logits --rel-l2 1e-12";
    for (words, place) in [
        // another layer's output
        (format!("check qwen3_5_35b_a3b:layer0 {layer0} --steps 2 --expected TINY:model.layers.1:float_output"), "step 0"),
        // a state that is not the captured one
        (
            format!(
                "check qwen3_5_35b_a3b:layer0 {layer0} --steps 2 --expected TINY:model.layers.0:float_output \
                 --input recurrent_state=TINY:model.layers.0.linear_attn:recurrent_state"
            ),
            "first at mul of `linear_attn.norm`",
        ),
        // an input that is another layer's
        (
            "check qwen3_5_35b_a3b:layer3 --delivery tiny --input hidden=TINY:model.layers.4:float_input --steps 3 \
             --expected TINY:model.layers.3:float_output --skip k_row,v_row,expert_ids,router_logits --rel-l2 1e-12"
                .into(),
            "first at rms_norm of `input_layernorm`",
        ),
        // a bound that the device's rounding does not meet
        ("check tiny:layer0 --twin --inputs random --rel-l2 1e-9 --force-experts".into(), "first difference: step 0, in "),
    ] {
        let o = expect(&words, 1);
        assert!(out(&o).ends_with("\nFAIL\n") && out(&o).contains(place), "{words}: {}", out(&o));
    }
}

#[test]
fn what_cannot_be_judged_is_refused() {
    let real = "check tiny:layer3 --inputs real --steps 2";
    for (words, why) in [
        (format!("{real} --skip k_row,v_row"), "there is no default"),
        (format!("{real} --rel-l2 nan --skip k_row,v_row"), "a bound is a finite number"),
        (format!("{real} --rel-l2 1"), "nothing says what k_row, v_row should be"),
        (format!("{real} --rel-l2 1 --skip k_rwo"), "no output `k_rwo`"),
        ("check tiny:layer3 --rel-l2 1".into(), "there are no inputs"),
        ("check tiny:layer3 --twin --inputs random --rel-l2 1".into(), "dimension `ctx_len` is open"),
        ("check tiny:layer3 --twin --inputs random --dim ctx_len=4096 --rel-l2 1".into(), "expected a value in 0..4096"),
        ("check tiny:layer3 --twin --inputs random --dim ctx=1 --rel-l2 1".into(), "expected one of: ctx_len"),
        ("check tiny:layer3.mixr --inputs random --rel-l2 1".into(), "did you mean `mixer`?"),
        ("check big:layer3 --inputs random --rel-l2 1".into(), "expected one of: qwen3_5_35b_a3b, tiny"),
        ("check qwen3_5_35b_a3b:layer3 --inputs random --rel-l2 1 --dim ctx_len=0".into(), "--weights generated:INDEX.json or random:SEED"),
        ("check qwen3_5_35b_a3b:layer3 --inputs random --weights generated --rel-l2 1".into(), "expected generated:INDEX.json"),
        ("check qwen3_5_35b_a3b:layer1 --inputs random --weights generated:INDEX --rel-l2 1".into(), "input_layernorm.weight"),
        ("check tiny:layer0 --input hidden=TINY:model.layers.0:float_inputs --rel-l2 1".into(), "model.layers.0:float_input"),
        ("check tiny:layer0 --input hiden=TINY:model.layers.0:float_input --rel-l2 1".into(), "expected one of: hidden, conv_state, recurrent_state"),
        ("check tiny:layer0 --input hidden=TINY:lm_head:float_output --steps 2 --rel-l2 1 --skip conv_state,recurrent_state --expected TINY:model.layers.0:float_output --skip expert_ids,router_logits".into(), "activation `hidden`"),
        ("check tiny:layer0 --twin --inputs random --device qb3 --rel-l2 1".into(), "expected qb1, qb4, qb16"),
        ("check tiny:layer0 --twin --inputs random --recipe w8 --rel-l2 1".into(), "no recipe \"w8\", expected one of:"),
    ] {
        let o = expect(&words, 2);
        assert!(says(&o, why), "{words}: {}", said(&o));
        assert!(o.stdout.is_empty(), "nothing was judged");
    }
}

#[test]
fn text_and_json_say_the_same() {
    let words = "check tiny:layer3 --twin --inputs random --dim ctx_len=0,5 --steps 2 --rel-l2 1e-9 --cosine 0.99 --force-experts";
    let text = out(&expect(words, 1));
    let json: Value = serde_json::from_str(&out(&expect(&format!("{words} --json"), 1))).unwrap();
    assert_eq!(json["verdict"], "fail");
    assert_eq!(json["runs"].as_array().unwrap().len(), 2);
    let flat: Vec<&str> = text.split_whitespace().collect();
    for run in json["runs"].as_array().unwrap() {
        assert!(text.contains(&format!("ctx_len = {}, 2 steps", run["dims"]["ctx_len"])));
        assert!(text.contains(run["diverged"]["function"].as_str().unwrap()));
        for output in run["outputs"].as_array().unwrap() {
            for gate in output["gates"].as_array().unwrap() {
                let value = gate["value"].as_f64().unwrap();
                assert!(flat.contains(&mica_score::gate::figure(value).as_str()), "{gate}: {text}");
                assert!(text.contains(gate["name"].as_str().unwrap()));
            }
            assert!(!output["norms"].as_array().unwrap().is_empty() || output["dtype"] == "i64", "{output}");
        }
    }
}

#[test]
fn an_analysis_counts_what_is_read() {
    let o = out(&expect("analyze qwen3_5_35b_a3b:layer0.moe --json", 0));
    let all: Value = serde_json::from_str(&o).unwrap();
    // 8 of 256 experts, [1024 + 512, 2048] each in bfloat16; router, shared expert and its gate whole
    let experts = 8 * (1024 + 512) * 2048 * 2;
    let whole = (256 + 3 * 512 + 1) * 2048 * 2;
    assert_eq!(all[0]["total"]["weights"], experts + whole);
    assert_eq!(all[0]["bound_by"], "external memory");
    let short = out(&expect("analyze qwen3_5_35b_a3b:layer3 --dim ctx_len=0,4096 --device qb4", 0));
    for said in [
        "ctx_len = 4096",
        "qb4: 256 PEs",
        "mixer.full_attention",
        "moe.router.router",
        "matmul self_attn.q_proj",
    ] {
        assert!(short.contains(said), "{said}: {short}");
    }
    for (words, why) in [
        ("analyze qwen3_5_35b_a3b:", "has no entry"),
        ("analyze qwen3_5_35b_a3b:layer3 --dim ctx_len=262144", "expected a value in 0..262144"),
        ("analyze qwen3_5_35b_a3b:layer3 --dim ctx_len", "expected NAME=NUMBER"),
    ] {
        let o = expect(words, 2);
        assert!(says(&o, why), "{words}: {}", said(&o));
    }
}

/// A workspace that can't be read is told, and what stands in it is not called unknown; where there is none at all, the
/// name is.
#[test]
fn a_broken_workspace_is_told_and_no_name_is_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let mica = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
        command.current_dir(dir.path()).args(words.split_whitespace()).output().unwrap()
    };
    let none = mica("analyze tiny");
    assert!(none.status.code() == Some(2) && says(&none, "no model `tiny` is described"), "{}", said(&none));
    let none = mica("analyze qwen3_5_35b_a3b:layer0 --delivery small");
    assert!(none.status.code() == Some(2) && says(&none, "\"small\" is no delivery"), "{}", said(&none));

    let text = std::fs::read_to_string(root().join("workspace.toml")).unwrap();
    let text = text.replace("[model.tiny]\n", "[model.tiny]\nfoo = 8\n");
    let line = text.lines().position(|l| l == "foo = 8").unwrap() + 1;
    std::fs::write(dir.path().join("workspace.toml"), text).unwrap();
    for words in [
        "analyze tiny",
        "analyze tiny:layer0",
        "check tiny:layer0 --inputs random --nan-inf 0",
        "analyze qwen3_5_35b_a3b:layer0 --delivery tiny",
    ] {
        let o = mica(words);
        let told = format!("workspace.toml, line {line}: unknown field `foo`");
        assert!(o.status.code() == Some(2) && says(&o, &told), "{words}: {}", said(&o));
    }
}

//! `mica debug` on the shipped model, its words fed on standard input.

use crate::tiny;
use mica_device::isa::Instr;
use mica_device::{asm, check};
use mica_tests::{Run, Workspace};

fn debug(workspace: &Workspace, words: &[&str], script: &str) -> Run {
    workspace.mica(&[&["debug", "tiny"], words].concat()).input(script).run()
}

#[test]
fn it_builds_the_kernel_stops_steps_and_shows() {
    let workspace = tiny();
    let script = "step\nwhere\nnext\nb layer3:mlp.gate\nregs\ncontinue\nlist 1\ndump\nquit\n";
    let said = |words: &[&str]| debug(&workspace, words, script).exits(0);
    let run = said(&["--break-at", "layer3"]);
    for line in [
        "break layer3: layer3 op ",
        "layer3 op 0 ",
        "break layer3:mlp.gate: layer3 op ",
        "pos.in",
        "> ",
        " left t",
        "left after ",
        "no event counted",
    ] {
        assert!(run.stdout.contains(line), "no {line:?} in\n{}", run.stdout);
    }
    // the same kernel again, from the cache: the same words
    said(&["--break-at", "layer3"]).says_as(&run, "again");
    assert_eq!(workspace.build_well(&["link:tiny.kernel"]).ran().len(), 0, "what it built is kept");
}

/// The calls before the one that is asked for run undisturbed: what an op leaves is of that token.
#[test]
fn dumps_are_of_the_call_that_is_asked_for() {
    let workspace = tiny();
    let chosen = |token: &str| {
        let run = debug(
            &workspace,
            &["--token", token, "--dump", "layer2:topk mlp.gate", "--dump", "head:lm_head"],
            "",
        )
        .exits(0);
        assert!(run.stdout.contains("ended after "), "{}", run.stdout);
        assert!(run.stdout.contains("head op "), "the head stores its logits in L2\n{}", run.stdout);
        let ids = run.stdout.lines().skip_while(|l| !l.contains("topk mlp.gate left")).nth(2);
        ids.map(str::to_owned).unwrap_or_else(|| panic!("no ids in\n{}", run.stdout))
    };
    assert_ne!(chosen("0"), chosen("7"), "other tokens, other experts");
    let shorter =
        workspace.mica(&["debug", "tiny[layers=2]", "--dump", "layer1:topk mlp.gate"]).run().exits(0);
    assert!(
        shorter.stdout.contains("layer1 op ") && shorter.stdout.contains("ended after "),
        "{}",
        shorter.stdout
    );
}

#[test]
fn what_it_cannot_do_is_misuse() {
    let workspace = tiny();
    for (words, said) in [
        (&["--break-at", "layer9"][..], "is it \"layer0\"?"),
        (&["--break-at", "layer3:mlp.gat"], "mlp.gate"),
        (&["--break-at", "1000000"], "numbered from 0"),
        (&["--dump", "layer3"], "say layer3:OP"),
        (&["--token", "20"], "there are 20 tokens"),
        (&["--ids", "5", "--token", "1"], "there are 1 tokens"),
    ] {
        let run = debug(&workspace, words, "").exits(2);
        let solid: String = run
            .stderr
            .split(|c: char| c.is_whitespace() || c == '│')
            .filter(|w| !w.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        assert!(solid.contains(said), "{words:?}: {}", run.stderr);
    }
    let run = workspace.mica(&["debug", "pack:tiny.layer0"]).run().exits(2);
    assert!(run.stderr.contains("is no kernel"), "{}", run.stderr);
}

/// The instructions of a listing, each with the line above it that says where it comes from.
fn listed(text: &str) -> Vec<(String, Instr)> {
    let mut source = String::new();
    let mut all = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("; ") {
            Some(said) => said.clone_into(&mut source),
            None => {
                all.extend(asm::parse(line).expect("an instruction").into_iter().map(|i| (source.clone(), i)))
            }
        }
    }
    all
}

/// Layer and op of every instruction are told as the model calls them, and the listing is a program again.
#[test]
fn a_listing_names_the_layer_and_the_op_of_each_instruction() {
    let workspace = tiny();
    workspace.build_well(&["link:tiny.kernel"]);
    let text = |target: &str| workspace.mica(&["disasm", target]).run().exits(0).stdout;
    let kernel = text("link:tiny.kernel");
    let all = listed(&kernel);
    let names: Vec<String> = ["embed".into()]
        .into_iter()
        .chain((0..8).map(|n| format!("layer{n}")))
        .chain(["head".into()])
        .collect();
    for (source, i) in &all {
        let said = format!("{} op {} ", names[(i.src >> 16) as usize], i.src & 0xffff);
        assert!(source.starts_with(&said) && source.len() > said.len(), "{source:?}, not {said:?}: {i:?}");
    }
    assert!(
        all.iter().any(|(source, _)| source.starts_with("layer3 ") && source.ends_with(" topk mlp.gate"))
    );
    let program = asm::parse(&kernel).expect("a program");
    assert_eq!(check::check(&program), Ok(()));
    assert_eq!(program, all.into_iter().map(|(_, i)| i).collect::<Vec<_>>());
    // of an object, its kind; it has no end of its own
    let object = listed(&text("compile:tiny.full_attention"));
    assert!(object.iter().all(|(source, _)| source.starts_with("full_attention op ")), "{object:?}");
    let unbuilt = workspace.mica(&["disasm", "score:tiny.decode"]).run().exits(2);
    assert!(unbuilt.stderr.contains("holds no program"), "{}", unbuilt.stderr);
}

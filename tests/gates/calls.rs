//! Calls of several tokens: what a prompt leaves has the bits that its tokens leave one by one, and the gate that
//! compares the whole kernel with its segments sees where that is not so.

use super::{TOKENS, failed, forced, free, sound};
use mica::host::{Feed, Run};
use mica_device::isa::{self, Opcode};
use mica_device::object::{Direction, Kernel};
use mica_simulate::Counters;
use mica_tests::port::{judge, prompt};

/// A prompt that goes over the end of a block of 128 cached rows, and is no whole number of calls.
fn ids(captured: &[i64]) -> Vec<i64> {
    captured.iter().copied().cycle().take(134).collect()
}

/// What calls of so many tokens leave, and how many instructions they ran.
fn run(tokens: u64, feed: &Feed<'_>) -> (u64, Run) {
    let s = sound();
    let many = s.ported.for_calls_of(&s.source, tokens);
    let run = prompt(&s.source, (&many, tokens), &s.ported, feed, |_| ()).unwrap_or_else(|e| panic!("{e}"));
    let instructions = run.counters.instructions;
    (instructions, Run { counters: Counters { instructions: 0, ..run.counters }, ..run })
}

#[test]
fn a_prompt_leaves_what_its_tokens_leave_one_by_one() {
    let ids = ids(&sound().captures.ids);
    let feed = Feed { ids: &ids, ..Feed::default() };
    let (most, one) = run(1, &feed);
    assert!(one.outputs.contains_key("logits") && one.states.len() == 2 && one.rows.len() == 2);
    for tokens in [2, 3, 4] {
        let (instructions, several) = run(tokens, &feed);
        assert!(several == one, "{tokens} tokens a call");
        assert!(instructions < most, "{tokens} tokens a call share what they can");
    }
}

/// Experts that are given reach the token that they are given for.
#[test]
fn forced_experts_are_each_tokens_own() {
    let c = &sound().captures;
    // each token takes the experts of the one at the other end, so that none would choose its own
    let turned: Vec<Vec<i64>> = c
        .routing
        .iter()
        .map(|layer| layer.chunks(layer.len() / TOKENS).rev().flatten().copied().collect())
        .collect();
    let forced = Some(turned.iter().map(Vec::as_slice).collect());
    let feed = Feed { ids: &c.ids[..TOKENS], forced, ..Feed::default() };
    let one = run(1, &feed).1;
    assert!(run(3, &feed).1 == one);
    let free = Feed { forced: None, ..feed };
    assert!(run(3, &free).1 != one, "the experts show");
}

/// Where the rows go that a call appends to its caches.
fn append_one_row_off(kernel: &mut Kernel) {
    let both = kernel.entries.iter().filter(|e| e.direction == Direction::InOut).map(|e| e.register);
    let caches: Vec<u8> = both.collect();
    let mut code = isa::decode(&kernel.code).expect("a program");
    let mut changed = 0;
    for i in code.iter_mut().filter(|i| i.op == Opcode::Dst && caches.contains(&i.r[1])) {
        i.z += u64::from(i.y) / 2;
        changed += 1;
    }
    assert!(changed > 0, "nothing is appended");
    kernel.code = isa::encode(&code);
}

#[test]
fn a_row_that_is_appended_elsewhere_fails_a_gate() {
    let s = sound();
    let ids = &s.captures.ids[..TOKENS];
    let many = s.ported.for_calls_of(&s.source, 2);
    let free = free(&s.source, &s.ported, ids).unwrap_or_else(|e| panic!("{e}"));
    let forced = forced(&s.source, &s.ported, ids, &s.captures.routing).unwrap_or_else(|e| panic!("{e}"));
    let verdict = |change: fn(&mut Kernel)| {
        let feed = Feed { ids, ..Feed::default() };
        let run = prompt(&s.source, (&many, 2), &s.ported, &feed, change).unwrap_or_else(|e| panic!("{e}"));
        let end = ["hidden", "normed", "logits"].map(|name| run.outputs[name].as_slice()).concat();
        judge(&s.source, &s.captures, &s.reference, &free, &forced, &end)
    };
    let sound = verdict(|_| ());
    assert!(failed(&sound).is_empty(), "{:?}", failed(&sound));
    assert_eq!(failed(&verdict(append_one_row_off)).into_iter().collect::<Vec<_>>(), ["whole-kernel"]);
}

//! The order proof: small programs, and what it says of each.

use mica_device::asm;
use mica_device::hazards::{check, check_iterations};

const TILES: &str = "
    tdef.f16 t0, lrm=0x0, 1x64, -
    tdef.f32 t1, lrm=0x100, 1x64, -
    tdef.f32 t2, lrm=0x200, 1x64, -
";

fn verdict(body: &str) -> String {
    let program = asm::parse(&format!("{TILES}{body}")).unwrap();
    check(&program).map_or_else(|e| e.to_string(), |()| "ordered".into())
}

#[test]
fn a_read_must_await_the_write() {
    let load = "dld l2=0x0, bytes=128, -, s1, -, off=0\n";
    assert_eq!(
        verdict(&format!("{load} ldt.f16 t0, l2=0x0")),
        "instruction 4 (ldt) may run before instruction 3 (dld) has retired: both touch L2 0x0..0x80"
    );
    assert_eq!(verdict(&format!("{load} ldt.f16 t0, l2=0x0 ?in-1")), "ordered");
    assert_eq!(verdict(&format!("{load} fence\nldt.f16 t0, l2=0x0")), "ordered");
    assert_eq!(verdict(&format!("{load} ldt.f16 t0, l2=0x80")), "ordered");
    // the wait names the load before the one that matters
    assert_eq!(
        verdict(&format!("dld l2=0x200, bytes=64, -, s1, -, off=0\n{load} ldt.f16 t0, l2=0x0 ?in-2")),
        "instruction 5 (ldt) may run before instruction 4 (dld) has retired: both touch L2 0x0..0x80"
    );
}

#[test]
fn a_write_must_await_the_read() {
    let read = "ldt.f16 t0, l2=0x0\n";
    assert_eq!(
        verdict(&format!("{read} dld l2=0x40, bytes=8, -, s1, -, off=0")),
        "instruction 4 (dld) may run before instruction 3 (ldt) has retired: both touch L2 0x40..0x48"
    );
    assert_eq!(verdict(&format!("{read} dld l2=0x40, bytes=8, -, s1, -, off=0 ?flow-1")), "ordered");
    // two reads need no order
    assert_eq!(verdict("ldt.f16 t0, l2=0x0\nmatv.f16 t1, t0, l2=0x0, rows=16, group=0 ?flow-1"), "ordered");
}

#[test]
fn what_an_awaited_instruction_knew_is_known() {
    // flow awaits in, array awaits flow: so array may read what `in` wrote
    assert_eq!(
        verdict(
            "dld l2=0x0, bytes=4096, -, s1, -, off=0
             ldt.f16 t0, l2=0x0 ?in-1
             matv.f16 t1, t0, l2=0x80, rows=16, group=0 ?flow-1"
        ),
        "ordered"
    );
    // and an instruction of the front end orders all that follows it
    assert_eq!(
        verdict(
            "vun.exp t1, t2
             nop ?array-1
             stt.f32 t1, l2=0x0"
        ),
        "ordered"
    );
}

#[test]
fn the_second_walk_of_a_loop_meets_the_first() {
    let body = |wait: &str| {
        format!(
            "loop s16, s17, body=2
             dld l2=0x0, bytes=128, -, s1, -, off=0 {wait}
             ldt.f16 t0, l2=0x0 ?in-1"
        )
    };
    assert_eq!(
        verdict(&body("")),
        "instruction 4 (dld) may run before instruction 5 (ldt) has retired: both touch L2 0x0..0x80"
    );
    assert_eq!(verdict(&body("?flow-1")), "ordered");
    let program = asm::parse(&format!("{TILES}{}", body(""))).unwrap();
    assert_eq!(check_iterations(&program, 1), Ok(()));
}

/// What is stored in an edge that the program also reads is external memory in two hands.
#[test]
fn a_load_must_await_the_store_to_its_edge() {
    let stored = "dst l2=0x0, bytes=64, -, s1, -, off=128\n";
    let load = |base: &str, index: &str, off: u64, wait: &str| {
        format!("dld l2=0x100, bytes=64, -, {base}, {index}, off={off} {wait}")
    };
    let after = |load: String| verdict(&format!("{stored}{load}"));
    let meets = "instruction 4 (dld) may run before instruction 3 (dst) has retired: both touch External";
    assert_eq!(after(load("s1", "-", 160, "")), format!("{meets} 0x10000000000a0..0x10000000000c0"));
    assert_eq!(after(load("s1", "-", 160, "?out-1")), "ordered");
    assert_eq!(verdict(&format!("{stored}fence\n{}", load("s1", "-", 160, ""))), "ordered");
    // other bytes of it, and another edge
    assert_eq!(after(load("s1", "-", 192, "")), "ordered");
    assert_eq!(after(load("s2", "-", 160, "")), "ordered");
    // an index may lead to any byte of the edge, a computed base to any edge
    assert!(after(load("s1", "s20", 0, "")).starts_with(meets));
    assert!(after(load("s16", "-", 0, "")).starts_with(meets));
    // a register that something writes is an entry's no more
    let overwritten = format!("sli s2, value=0\n{stored}{}", load("s2", "-", 0, ""));
    assert!(verdict(&overwritten).contains("External"));
    // a scalar load reads external memory as well
    assert!(after("sld s20, s1, off=128".into()).contains("(sld) may run before"));
    // and a store must await the load
    assert!(verdict(&format!("{}\n{stored}", load("s1", "-", 128, ""))).contains("(dst) may run before"));
}

#[test]
fn undefined_tiles_are_named() {
    assert_eq!(verdict("vun.exp t1, t9"), "instruction 3: tile t9 is not defined");
}

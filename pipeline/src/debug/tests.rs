//! The debugger on a program small enough to foretell, its words fed from a script.

use super::{Debugger, Wanted};
use mica_device::format::Format;
use mica_device::object::{Direction, EdgeUse, Entry, Kernel, OpInfo, Segment};
use mica_device::product::Product;
use mica_device::{asm, isa};
use mica_simulate::{Edges, Machine, Options, Program, SimError};

/// Two parts: one loads and doubles, the other scales until it saturates and stores in L2.
const TEXT: &str = "dld l2=0, bytes=8, -, s1, -, off=0
                    tdef.f32 t0, lrm=0, 1x2, -
                    ldt.f32 t0, l2=0 ?in-1
                    opb t0
                    vbini.mul t0, t0, 2.0 ?flow-1 @0.1
                    opb t0 @0.1
                    tdef.fx32 t1, lrm=0x40, 1x2, -, frac=20 @1.0
                    vbini.mul t1, t0, 1000.0 @1.0
                    opb t1 @1.0
                    stt.fx32 t1, l2=0x100, frac=20 ?array-1 @1.1
                    dst l2=0x100, bytes=8, -, s2, -, off=0 ?flow-1 @1.1
                    halt @1.1";

fn entry(name: &str, register: u8, direction: Direction) -> Entry {
    let (format, shape, bytes) = (Format::F32, vec![2], 8);
    let share = EdgeUse { name: name.into(), direction, format, frac: 0, shape, bytes };
    Entry { name: name.into(), register, direction, bytes, shares: vec![(0, 0, share)] }
}

fn kernel() -> Kernel {
    let op = |op: &str, label: &str| OpInfo { op: op.into(), label: label.into() };
    Kernel {
        code: isa::encode(&asm::parse(TEXT).unwrap()),
        segments: vec![Segment { offset: 0, bytes: 4, part: 0, literals: false }],
        literals: vec![Vec::new(); 2],
        entries: vec![entry("in", 1, Direction::In), entry("out", 2, Direction::Out)],
        ops: vec![
            vec![op("index_select", "embed_tokens"), op("mul", "scale")],
            vec![op("mul", "mlp.gate"), op("cache_update", "mlp")],
        ],
        parts: vec!["embed".into(), "full_attention".into()],
        lrm_peak: 0x48,
        l2_peak: 0x108,
    }
}

/// What is heard when `script` is said, and what the call left.
fn hear(wanted: &Wanted, script: &str, strict: bool) -> (String, Result<Vec<u8>, SimError>) {
    let (program, product) = (Program::load(&kernel()).unwrap(), Product::named("qb1").unwrap());
    let parts = ["embed".to_string(), "layer0".to_string()];
    let constants: &[&[u8]] = &[&[1, 2, 3, 4]];
    let mut machine = Machine::new(&program, &product, constants, Options { threads: 1, strict }).unwrap();
    let mut edges = Edges::new(&program);
    edges.set_in("in", [1.5f32, -0.25].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let wanted = Wanted { elements: 4, ..wanted.clone() };
    let mut d = Debugger::new(&program, &parts, &wanted, (script.as_bytes(), Vec::new()), None).unwrap();
    let ran = machine.call_observed(&mut edges, &mut d);
    match &ran {
        Ok(counters) => d.ended(*counters),
        Err(SimError::Trap(t)) => d.trapped(t, machine.left(t.instruction, &edges).as_ref()),
        Err(e) => panic!("{e}"),
    }
    let heard = String::from_utf8(d.finish().unwrap()).unwrap();
    (heard, ran.map(|_| edges.out("out").unwrap().to_vec()))
}

fn stepping() -> Wanted {
    Wanted { step: true, ..Wanted::default() }
}

#[test]
fn steps_show_operands_before_and_results_after() {
    let (heard, left) = hear(&stepping(), "step 4\ns\nregs\nc\n", false);
    insta::assert_snapshot!(heard);
    let saturated = [i32::MAX, -500 << 20].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    assert_eq!(left.unwrap(), saturated);
}

#[test]
fn breakpoints_ops_and_layers() {
    let wanted = Wanted { breaks: vec!["layer0:mlp.gate".into()], ..Wanted::default() };
    let script = "break\ndelete layer0:mlp.gate\nb nothing\nb 11\nb 12\nlist 1\nnext\nc\ndump\nc\n";
    insta::assert_snapshot!(hear(&wanted, script, false).0);
    let script = "next\nlayer\nwhere\nquit\n";
    let (heard, left) = hear(&stepping(), script, false);
    insta::assert_snapshot!(heard);
    assert_eq!(left.unwrap(), [0; 8], "the run ended before it stored");
}

#[test]
fn dumps_show_what_ops_leave_in_either_memory_and_what_they_count() {
    let wanted = Wanted {
        dumps: ["mul", "layer0:1", "index_select embed_tokens"].map(String::from).to_vec(),
        ..Wanted::default()
    };
    insta::assert_snapshot!(hear(&wanted, "", false).0);
}

#[test]
fn memories_are_printed() {
    let wanted = Wanted { breaks: vec!["10".into()], ..Wanted::default() };
    let script = "p t0\np t9\np s1\np l2 0x100 8 fx32.20\np l2 0 8\np lrm 0 8 f32\np in 0 8 f32\np out 0 4\n\
                  p constants 0 4\np constants 0 5\np l3 0 4\ntiles\nevents\n";
    insta::assert_snapshot!(hear(&wanted, script, false).0);
}

/// Numbers that no place has: a place as far as that is past the end, in its own entry's words, and lines to either side
/// are as many as there are.
#[test]
fn the_largest_numbers_are_places_like_others() {
    let wanted = Wanted { breaks: vec!["10".into()], ..Wanted::default() };
    let most = u64::MAX;
    // the bit that addresses `out` itself: `out` with it would be `out` from its start
    let own = 2_u64 << mica_simulate::BUFFER_SHIFT;
    for place in [format!("l2 {most} {most}"), format!("lrm 0 {most}"), format!("constants 1 {most}")]
        .into_iter()
        .chain([format!("in {most} 4"), format!("out {own} 4")])
    {
        let (heard, _) = hear(&wanted, &format!("p {place}\n"), false);
        assert!(heard.contains("past its end"), "{place}: {heard}");
    }
    let all = hear(&wanted, "list 100\n", false).0;
    assert_eq!(hear(&wanted, &format!("list {most}\n"), false).0, all);
}

/// A trap tells instruction, layer and op among the lines around it, and lets one look; a run that has
/// nothing to trap does neither.
#[test]
fn a_trap_is_told_with_its_surroundings() {
    let (heard, left) = hear(&Wanted::default(), "step\np t1\n", true);
    insta::assert_snapshot!(heard);
    let Err(SimError::Trap(t)) = left else { panic!("{left:?}") };
    assert_eq!((t.instruction, t.part, t.op), (7, 1, 0));
    let (heard, _) = hear(&Wanted::default(), "", false);
    assert!(!heard.contains("trapped"), "{heard}");
}

/// What is dumped is an op, so a part or a number alone is told apart from a name that nothing has.
#[test]
fn what_is_dumped_is_an_op() {
    let program = Program::load(&kernel()).unwrap();
    let parts = ["embed".to_string(), "layer0".to_string()];
    for (word, said) in [
        ("layer0", "layer0 is a part, and an op of it is needed: say layer0:OP"),
        ("1", "counted in its part: say PART:1"),
        ("", "\"\" is no place"),
        ("mlp.gate", ""),
    ] {
        let wanted = Wanted { dumps: vec![word.into()], ..Wanted::default() };
        let made = Debugger::new(&program, &parts, &wanted, (&b""[..], Vec::new()), None);
        let e = made.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(e.contains(said) && e.is_empty() == said.is_empty(), "{word}: {e}");
    }
}

#[test]
fn places_that_do_not_exist_are_refused_with_the_nearest() {
    let program = Program::load(&kernel()).unwrap();
    let parts = ["embed".to_string(), "layer0".to_string()];
    let refused = |word: &str| {
        let wanted = Wanted { breaks: vec![word.into()], ..Wanted::default() };
        let made = Debugger::new(&program, &parts, &wanted, (&b""[..], Vec::new()), None);
        made.err().map(|e| e.to_string()).unwrap_or_default()
    };
    for (word, said) in [
        ("12", "12 instructions, numbered from 0"),
        ("layer1", "is it \"layer0\"?"),
        ("layer0:mlp.gat", "is it \"layer0:mlp.gate\"?"),
        ("layer0:7", "is no place"),
        ("", "\"\" is no place"),
        ("layer0:", "is no place"),
        ("layr0:mlp", "is no place"),
        ("mlp.gate", ""),
        ("0", ""),
    ] {
        let e = refused(word);
        assert!(e.contains(said) && e.is_empty() == said.is_empty(), "{word}: {e}");
    }
}

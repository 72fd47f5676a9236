//! What lies where: lives, peaks and names, on programs small enough to count by hand.

mod common;

use common::kernel;
use mica_device::object::OpInfo;
use mica_simulate::Program;
use mica_simulate::memory::{BEFORE, PartMap, map};

fn maps(text: &str) -> Vec<PartMap> {
    let mut k = kernel(text, 1 << 20, 1 << 20, 1 << 20);
    k.ops.push(vec![
        OpInfo { op: "neg".into(), label: "b".into() },
        OpInfo { op: "exp".into(), label: "c".into() },
    ]);
    k.ops.push(k.ops[1].clone());
    k.parts = vec!["embed".into(), "layer".into(), "layer".into()];
    map(&Program::load(&k).unwrap(), &[]).unwrap()
}

#[test]
fn lives_end_with_the_last_read() {
    // two transfers into one place, never live together; a third beside them
    let text = "tdef.f32 t0, lrm=0, 1x64, -
                dld l2=0, bytes=256, -, s1, -, off=0
                ldt.f32 t0, l2=0
                dld l2=0, bytes=256, -, s1, -, off=0 @0.1
                dld l2=0x400, bytes=256, -, s0, -, off=0 @0.1
                ldt.f32 t0, l2=0 @0.1
                ldt.f32 t0, l2=0x400 @0.1
                dst l2=0, bytes=256, -, s2, -, off=0 @0.1";
    let all = maps(text);
    let l2 = &all[0].l2;
    assert_eq!((l2.peak, l2.live, l2.live_at.as_str()), (0x500, 512, "mlp.gate"));
    let regions: Vec<_> = l2
        .regions
        .iter()
        .map(|r| (r.what.as_str(), r.from, r.to, r.bytes, r.writes, r.first, r.last))
        .collect();
    assert_eq!(regions, [("in", 0, 256, 256, 2, 1, 7), ("constants", 0x400, 0x500, 256, 1, 4, 6)]);
    assert_eq!((all[0].lrm.peak, all[0].lrm.live), (256, 256));
}

#[test]
fn what_is_overwritten_as_it_is_read_counts_once() {
    let text = "tdef.f32 t0, lrm=0, 1x64, -
                tdef.f32 t1, lrm=0x80, 1x64, -
                ldt.f32 t0, l2=0
                vun.neg t0, t0
                vun.exp t1, t0";
    // the last one overlaps by half: the other half of what it reads is still there
    let lrm = &maps(text)[0].lrm;
    assert_eq!((lrm.peak, lrm.live), (384, 384));
    let lrm = &maps(&text[..text.rfind("vun").unwrap()])[0].lrm;
    assert_eq!((lrm.peak, lrm.live), (256, 256));
}

#[test]
fn what_is_older_than_a_loop_lives_to_its_end() {
    // t1 is read in the first instruction of the body, while the second writes elsewhere: both are live
    let body = "sli s16, value=2
                tdef.f32 t0, lrm=0, 1x64, -
                tdef.f32 t1, lrm=0x100, 1x64, -
                tdef.f32 t2, lrm=0x200, 1x64, -
                dld l2=0, bytes=256, -, s1, -, off=0
                ldt.f32 t1, l2=0\n";
    let used = "vun.neg t0, t1\nvun.exp t2, t0";
    assert_eq!(maps(&format!("{body}{used}"))[0].lrm.live, 512);
    assert_eq!(maps(&format!("{body}loop -, s16, body=2\n{used}"))[0].lrm.live, 768);
    // what the body overwrites is the same bytes once more, not others beside them
    let carried = "loop -, s16, body=2\nvun.neg t0, t1\nvun.exp t1, t0";
    assert_eq!(maps(&format!("{body}{carried}"))[0].lrm.live, 512);
}

#[test]
fn equal_parts_are_told_once() {
    let part = |n: u32| {
        format!(
            "tdef.f32 t0, lrm=0, 1x64, - @{n}.0
             ldt.f32 t0, l2=0 @{n}.0
             vun.neg t0, t0 @{n}.0
             vun.exp t0, t0 @{n}.1
             stt.f32 t0, l2=0 @{n}.1\n"
        )
    };
    let all = maps(&format!("nop\n{}{}nop @0.0", part(1), part(2)));
    let counted: Vec<_> = all.iter().map(|m| (m.part, m.kind.as_str(), m.count)).collect();
    assert_eq!(counted, [(0, "embed", 2), (1, "layer", 2)]);
    let layer = &all[1];
    let names: Vec<_> = layer.l2.regions.iter().map(|r| r.what.as_str()).collect();
    assert_eq!(names, ["exp c", BEFORE], "what the part before left is there from the start");
    // the tile is written in turn by the load, and by each op
    let names: Vec<_> = layer.lrm.regions.iter().map(|r| (r.what.as_str(), r.writes)).collect();
    assert_eq!(names, [("exp c", 1), ("neg b", 2)]);
}

//! What each instruction touches: bytes of L2, of local register memory, and of external memory. Waits are
//! made from it and proved against it, so what is missing here no order proof would miss.

use mica_device::access::{Access, Memory, TileFile, external};
use mica_device::asm;
use mica_device::isa::{Instr, Opcode};
use mica_device::tile::Tile;

const TILES: &str = "
    tdef.f32 t0, lrm=0x0, 40x64, -
    tdef.f32 t1, lrm=0x4000, 40x64, s17
    tdef.f32 t2, lrm=0x8000, 1x64, -
    tdef.f32 t3, lrm=0x8200, 1x40, -
    tdef.f16 t4, lrm=0x8400, 1x1024, -
    tdef.i32 t5, lrm=0x9000, 1x8, -
    tdef.f32 t6, lrm=0x9100, 1x8, -
    tdef.f32 t7, lrm=0xa000, 1x300, -
    tdef.f16 t8, lrm=0xb000, 40x64, -
";

/// Each tile's bytes, with the most rows that a scalar may give it.
const BYTES: [(&str, &str); 9] = [
    ("t0", "0..2800"),
    ("t1", "4000..6800"),
    ("t2", "8000..8100"),
    ("t3", "8200..82a0"),
    ("t4", "8400..8c00"),
    ("t5", "9000..9020"),
    ("t6", "9100..9120"),
    ("t7", "a000..a4b0"),
    ("t8", "b000..c400"),
];

fn text(a: &Access) -> String {
    let does = if a.write { "writes" } else { "reads" };
    let range = format!("{:x}..{:x}", a.range.start, a.range.end);
    match a.memory {
        Memory::L2 => format!("{does} L2 {range}"),
        Memory::Lrm => {
            let tile = BYTES.iter().find(|(_, bytes)| *bytes == range);
            format!("{does} {}", tile.map_or(range.as_str(), |(tile, _)| tile))
        }
        Memory::External => format!("{does} {range}"),
    }
}

/// What the last line touches within the device, in the order of the alphabet.
fn touches(line: &str) -> String {
    let program = asm::parse(&format!("{TILES}{line}")).unwrap();
    let mut tiles = TileFile::default();
    for i in program.iter().filter(|i| i.op == Opcode::Tdef) {
        tiles.set(i.r[0], Tile::define(i, None).unwrap());
    }
    let mut all: Vec<String> = tiles.accesses(program.last().unwrap()).unwrap().iter().map(text).collect();
    all.sort();
    all.join(", ")
}

#[test]
fn every_instruction_touches_this() {
    let cases: &[(&str, &str)] = &[
        ("nop", ""),
        ("fence", ""),
        ("trap code=1", ""),
        ("halt", ""),
        ("opb t0", ""),
        ("sli s16, value=1", ""),
        ("salu.add s16, s17, 1", ""),
        ("sld s16, s1, off=0", ""),
        ("tdef.f32 t0, lrm=0x0, 1x1, -", ""),
        ("sget s16, t5, at=0", "reads t5"),
        ("sput t5, s16, at=0", "writes t5"),
        ("dld l2=0x100, bytes=1000, -, s1, -, off=0", "writes L2 100..4e8"),
        ("dst l2=0x100, bytes=1000, -, s1, -, off=0", "reads L2 100..4e8"),
        ("ldt.f32 t0, l2=0x40", "reads L2 40..2840, writes t0"),
        ("ldt.i8 t1, l2=0x40", "reads L2 40..a40, writes t1"),
        ("stt.f16 t0, l2=0x40", "reads t0, writes L2 40..1440"),
        ("bct t8, t0", "reads t0, writes t8"),
        // 40 rows are stored as 48, four bytes each for a step of two columns
        ("matv.f16 t3, t4, l2=0x1000, rows=40, group=0", "reads L2 1000..19000, reads t4, writes t3"),
        ("vbin.add.same t0, t1, t1", "reads t1, reads t1, writes t0"),
        ("vbin.mul.cyclic t0, t1, t2", "reads t1, reads t2, writes t0"),
        ("vbini.mul t0, t1, 2.0", "reads t1, writes t0"),
        ("vun.exp t0, t1", "reads t1, writes t0"),
        ("red.sum.rows t3, t0", "reads t0, writes t3"),
        ("topk t5, t6, t7, -, k=8", "reads t7, writes t5, writes t6"),
        ("topk t5, t6, t7, t2, k=8", "reads t2, reads t7, writes t5, writes t6"),
        // (rows − 1) · stride + length elements from the first on
        ("vmov t0, to=0, t1, from=0, 40x64/64/64", "reads t1, writes t0"),
        ("vmov t0, to=2, t1, from=3, 4x8/64/16", "reads 400c..432c, writes 8..e8"),
        ("vmov t8, to=2, t4, from=3, 4x8/64/16", "reads 8406..8596, writes b004..b074"),
        ("vmov t0, to=2, t1, from=3, 0x8/64/16", "reads 400c..400c, writes 8..8"),
        ("vmov t0, to=2, t1, from=3, 4x0/64/16", "reads 400c..400c, writes 8..8"),
        ("vsincos t2, t3, t6, s16", "reads t6, writes t2, writes t3"),
        ("vrot t0, t1, t2, t3, rotate=64", "reads t1, reads t2, reads t3, writes t0"),
        ("tmv t3, t0, t2", "reads t0, reads t2, writes t3"),
        ("tmvt t2, t0, t3", "reads t0, reads t3, writes t2"),
        ("tmvt.acc t2, t0, t3", "reads t0, reads t2, reads t3, writes t2"),
        ("tout t0, t1, t3, t2", "reads t1, reads t2, reads t3, writes t0"),
    ];
    for (line, expected) in cases {
        assert_eq!(touches(line), *expected, "{line}");
    }
    let named = |op: &Opcode| cases.iter().any(|(line, _)| line.split([' ', '.']).next() == Some(op.text()));
    let left: Vec<_> = Opcode::ALL.iter().filter(|op| !named(op) && **op != Opcode::Loop).collect();
    assert!(left.is_empty(), "no case of {left:?}");
}

/// External memory: which bytes, by base, index and offset.
#[test]
fn transfers_touch_this_of_external_memory() {
    for (line, expected) in [
        ("dld l2=0x0, bytes=64, -, s1, -, off=128", "reads 1000000000080..10000000000c0"),
        ("dst l2=0x0, bytes=64, -, s2, -, off=0", "writes 2000000000000..2000000000040"),
        ("dld l2=0x0, bytes=64, s20, s1, -, off=0", "reads 1000000000000..1000000000040"),
        // an index leads to any byte of the buffer
        ("dld l2=0x0, bytes=64, -, s1, s20, off=128", "reads 1000000000000..2000000000000"),
        ("sld s20, s1, off=128", "reads 1000000000080..1000000000088"),
        // a base that was computed leads anywhere
        ("dst l2=0x0, bytes=64, -, s16, -, off=0", "writes 0..ffffffffffffffff"),
        ("ldt.f32 t0, l2=0x0", "nothing"),
    ] {
        let i: Instr = *asm::parse(line).unwrap().last().unwrap();
        let touched = external(&i, |r| r < 16);
        assert_eq!(touched.as_ref().map_or("nothing".into(), text), expected, "{line}");
    }
}

//! The codes of the manual, written down from it: the 32 bytes of each opcode, what every flags byte means,
//! the engine of each opcode, and the limits of every field.

use mica_device::isa::{Engine, INSTR_BYTES, Instr, Opcode};
use mica_device::{asm, check, disasm};

/// The 32 bytes of a row: hexadecimal digits, with spaces where a field ends.
fn bytes(row: &str) -> [u8; INSTR_BYTES] {
    let digits: Vec<u32> = row.chars().filter_map(|c| c.to_digit(16)).collect();
    assert_eq!(digits.len(), 2 * INSTR_BYTES, "{row}");
    std::array::from_fn(|n| (digits[2 * n] << 4 | digits[2 * n + 1]) as u8)
}

/// Every field that an opcode reads has a value of its own: x is 11121314, y 21222324, z 0102030405060708 where they
/// are numbers; the waits are 1 to 5, the source is layer 6, op 7.
#[test]
fn every_opcode_has_these_bytes() {
    let rows = [
        ("nop", "00 00 0102030405 00 07000600 00000000 00000000 00000000 0000000000000000"),
        ("halt", "01 00 0102030405 00 07000600 00000000 00000000 00000000 0000000000000000"),
        ("trap code=286397204", "02 00 0102030405 00 07000600 00000000 14131211 00000000 0000000000000000"),
        ("fence", "03 00 0102030405 00 07000600 00000000 00000000 00000000 0000000000000000"),
        ("opb t33", "04 00 0102030405 21 07000600 00000000 00000000 00000000 0000000000000000"),
        ("opb -", "04 00 0102030405 ff 07000600 00000000 00000000 00000000 0000000000000000"),
        (
            "loop s18, s17, body=286397204",
            "05 00 0102030405 11 07000600 12000000 14131211 00000000 0000000000000000",
        ),
        ("loop -, s17, body=1", "05 00 0102030405 11 07000600 ff000000 01000000 00000000 0000000000000000"),
        (
            "sli s17, value=72623859790382856",
            "06 00 0102030405 11 07000600 00000000 00000000 00000000 0807060504030201",
        ),
        ("sli s17, value=-2", "06 00 0102030405 11 07000600 00000000 00000000 00000000 feffffffffffffff"),
        (
            "salu.sub s17, s18, s19",
            "07 01 0102030405 11 07000600 12130000 00000000 00000000 0000000000000000",
        ),
        (
            "salu.sub s17, s18, 72623859790382856",
            "07 81 0102030405 11 07000600 12000000 00000000 00000000 0807060504030201",
        ),
        (
            "sld s17, s18, off=72623859790382856",
            "08 00 0102030405 11 07000600 12000000 00000000 00000000 0807060504030201",
        ),
        (
            "sget s17, t33, at=286397204",
            "09 00 0102030405 11 07000600 21000000 14131211 00000000 0000000000000000",
        ),
        (
            "sput t33, s17, at=286397204",
            "0a 00 0102030405 21 07000600 11000000 14131211 00000000 0000000000000000",
        ),
        (
            "tdef.fx32 t33, lrm=0x11121314, 84281096x16909060, s17, frac=22",
            "0b 03 0102030405 21 07000600 11160000 14131211 00000000 0807060504030201",
        ),
        (
            "dld l2=0x11121314, bytes=555885348, s20, s18, s19, off=72623859790382856",
            "10 00 0102030405 00 07000600 12131400 14131211 24232221 0807060504030201",
        ),
        (
            "dst l2=0x11121314, bytes=555885348, s20, s18, s19, off=72623859790382856",
            "11 00 0102030405 00 07000600 12131400 14131211 24232221 0807060504030201",
        ),
        (
            "ldt.fx32 t33, l2=0x11121314, frac=22",
            "18 03 0102030405 21 07000600 00160000 14131211 00000000 0000000000000000",
        ),
        (
            "stt.fx32 t33, l2=0x11121314, frac=22",
            "19 03 0102030405 21 07000600 00160000 14131211 00000000 0000000000000000",
        ),
        ("bct t33, t34", "1a 00 0102030405 21 07000600 22000000 00000000 00000000 0000000000000000"),
        (
            "matv.i8.s32.zero t33, t34, l2=0x11121314, rows=555885348, group=72623859790382856",
            "20 0d 0102030405 21 07000600 22000000 14131211 24232221 0807060504030201",
        ),
        (
            "vbin.mul.stretch t33, t34, t35",
            "21 22 0102030405 21 07000600 22230000 00000000 00000000 0000000000000000",
        ),
        (
            "vbini.div t33, t34, 1.5",
            "22 03 0102030405 21 07000600 22000000 0000c03f 00000000 0000000000000000",
        ),
        ("vun.silu t33, t34", "23 04 0102030405 21 07000600 22000000 00000000 00000000 0000000000000000"),
        ("red.max.cols t33, t34", "24 12 0102030405 21 07000600 22000000 00000000 00000000 0000000000000000"),
        (
            "topk t33, t34, t35, t36, k=286397204",
            "25 00 0102030405 21 07000600 22232400 14131211 00000000 0000000000000000",
        ),
        (
            "vmov t33, to=286397204, t34, from=555885348, 1800x1286/772/258",
            "26 00 0102030405 21 07000600 22000000 14131211 24232221 0807060504030201",
        ),
        (
            "vsincos t33, t34, t35, s20",
            "27 00 0102030405 21 07000600 22231400 00000000 00000000 0000000000000000",
        ),
        (
            "vrot t33, t34, t35, t36, rotate=286397204",
            "28 00 0102030405 21 07000600 22232400 14131211 00000000 0000000000000000",
        ),
        ("tmv t33, t34, t35", "29 00 0102030405 21 07000600 22230000 00000000 00000000 0000000000000000"),
        (
            "tmvt.acc t33, t34, t35",
            "2a 01 0102030405 21 07000600 22230000 00000000 00000000 0000000000000000",
        ),
        (
            "tout t33, t34, t35, t36",
            "2b 00 0102030405 21 07000600 22232400 00000000 00000000 0000000000000000",
        ),
    ];
    for (text, row) in rows {
        let text = format!("{text} ?scalar-1 ?in-2 ?out-3 ?flow-4 ?array-5 @6.7");
        let i = asm::parse(&text).unwrap();
        assert_eq!(i[0].encode(), bytes(row), "{text}");
        let back = Instr::decode(0, &bytes(row)).unwrap();
        assert_eq!((check::fields(0, &back), disasm::line(&back)), (Ok(()), text));
    }
    let told = |op: &Opcode| rows.iter().any(|(_, row)| bytes(row)[0] == *op as u8);
    assert!(Opcode::ALL.iter().all(told));
}

/// Codes are places in the manual's lists, from 0; a list's first row says where its codes start.
#[test]
fn every_flags_byte_means_this() {
    for (before, names, after, codes) in [
        ("salu.", "add sub mul min max shl shr", " s1, s2, s3", 0..),
        ("salu.", "add sub mul min max shl shr", " s1, s2, 4", 0x80..),
        ("tdef.", "f32 f16 bf16 fx32 i32 i8", " t1, lrm=0x0, 1x1, -", 0..),
        ("ldt.", "f32 f16 bf16 fx32 i32 i8", " t1, l2=0x0", 0..),
        ("stt.", "f32 f16 bf16 fx32 i32 i8", " t1, l2=0x0", 0..),
        ("matv.", "i4 i8 f16", " t1, t2, l2=0x0, rows=1, group=1", 0..),
        ("matv.", "i4.s32 i8.s32", " t1, t2, l2=0x0, rows=1, group=1", 4..),
        ("matv.", "i4.zero i8.zero", " t1, t2, l2=0x0, rows=1, group=1", 8..),
        ("matv.", "i4.s32.zero i8.s32.zero", " t1, t2, l2=0x0, rows=1, group=1", 12..),
        ("vbin.", "add.same sub.same mul.same div.same max.same min.same", " t1, t2, t3", 0..),
        ("vbin.", "add.cyclic sub.cyclic mul.cyclic div.cyclic max.cyclic min.cyclic", " t1, t2, t3", 0x10..),
        ("vbin.", "add.stretch sub.stretch mul.stretch div.stretch max.stretch", " t1, t2, t3", 0x20..),
        ("vbini.", "add sub mul div max min", " t1, t2, 1", 0..),
        ("vun.", "cvt neg exp sigmoid silu softplus rsqrt square round.bf16", " t1, t2", 0..),
        ("red.", "sum.rows sumsq.rows max.rows", " t1, t2", 0..),
        ("red.", "sum.cols sumsq.cols max.cols", " t1, t2", 0x10..),
        ("tmvt", " .acc", " t1, t2, t3", 0..),
    ] {
        for (name, code) in names.split(' ').zip(codes) {
            let frac = if name == "fx32" { ", frac=0" } else { "" };
            let text = format!("{before}{name}{after}{frac}");
            let i = asm::parse(&text).unwrap()[0];
            assert_eq!(i.encode()[1], code, "{text}");
            assert_eq!(asm::parse(&disasm::line(&i)).unwrap(), [i], "{text}");
        }
    }
}

#[test]
fn every_opcode_runs_on_this_engine() {
    for op in Opcode::ALL {
        let engine = match *op as u8 {
            0..=0x0b => Engine::Scalar,
            0x10 => Engine::DmaIn,
            0x11 => Engine::DmaOut,
            0x18..=0x1a => Engine::Flow,
            _ => Engine::Array,
        };
        assert_eq!(op.engine(), engine, "{op:?}");
    }
    assert_eq!(Opcode::ALL.len(), 29);
}

/// The first byte past each list of flags, and other bytes that mean nothing.
#[test]
fn other_flags_are_refused() {
    for (op, flags) in [
        (0x00, 1),
        (0x07, 7),
        (0x07, 0x87),
        (0x0b, 6),
        (0x10, 1),
        (0x18, 6),
        (0x19, 6),
        (0x20, 3),
        // f16 weights have neither scales nor zero points
        (0x20, 6),
        (0x20, 0x0a),
        (0x20, 0x0e),
        (0x20, 0x10),
        (0x21, 6),
        (0x21, 0x30),
        (0x22, 6),
        (0x22, 0x10),
        (0x23, 9),
        (0x24, 3),
        (0x24, 0x20),
        (0x2a, 2),
    ] {
        let mut i = Instr::new(Opcode::from_code(op).unwrap());
        i.flags = flags;
        let error = check::fields(0, &i).unwrap_err().to_string();
        assert!(error.ends_with(&format!("the flags {flags:#04x} mean nothing")), "{op:#x}: {error}");
    }
}

#[test]
fn fields_past_their_limits_are_refused() {
    let nest = |deep: usize| {
        let loops: String = (0..deep).map(|n| format!("loop -, s1, body={}\n", deep - n)).collect();
        check::check(&asm::parse(&format!("{loops}nop\nhalt")).unwrap()).map_err(|e| e.to_string())
    };
    assert_eq!(nest(8), Ok(()));
    assert_eq!(nest(9).unwrap_err(), "instruction 8: a loop over the next 1 instructions is nested too deep");
    let empty = check::check(&asm::parse("loop -, s1, body=0\nhalt").unwrap());
    assert!(empty.unwrap_err().to_string().ends_with("has an empty body"));
    // (opcode, register fields that are read and their limits)
    for (op, limits) in [
        (0x04, [64, 0, 0, 0, 0]),
        (0x05, [32, 32, 0, 0, 0]),
        (0x06, [32, 0, 0, 0, 0]),
        (0x07, [32, 32, 32, 0, 0]),
        (0x08, [32, 32, 0, 0, 0]),
        (0x09, [32, 64, 0, 0, 0]),
        (0x0a, [64, 32, 0, 0, 0]),
        (0x0b, [64, 32, 0, 0, 0]),
        (0x10, [0, 32, 32, 32, 0]),
        (0x11, [0, 32, 32, 32, 0]),
        (0x18, [64, 0, 0, 0, 0]),
        (0x19, [64, 0, 0, 0, 0]),
        (0x1a, [64, 64, 0, 0, 0]),
        (0x20, [64, 64, 0, 0, 0]),
        (0x21, [64, 64, 64, 0, 0]),
        (0x22, [64, 64, 0, 0, 0]),
        (0x23, [64, 64, 0, 0, 0]),
        (0x24, [64, 64, 0, 0, 0]),
        (0x25, [64, 64, 64, 64, 0]),
        (0x26, [64, 64, 0, 0, 0]),
        (0x27, [64, 64, 64, 32, 0]),
        (0x28, [64, 64, 64, 64, 0]),
        (0x29, [64, 64, 64, 0, 0]),
        (0x2a, [64, 64, 64, 0, 0]),
        (0x2b, [64, 64, 64, 64, 0]),
    ] {
        for (n, limit) in limits.into_iter().enumerate() {
            let mut i = Instr::new(Opcode::from_code(op).unwrap());
            if limit > 0 {
                i.r[n] = limit - 1;
                assert_eq!(check::fields(0, &i), Ok(()), "{op:#x} r{n}");
            }
            i.r[n] = limit.max(1);
            assert!(check::fields(0, &i).is_err(), "{op:#x} r{n} = {}", i.r[n]);
            i.r[n] = 255;
            let optional =
                matches!((op, n), (0x04, 0) | (0x05, 1) | (0x0b, 1) | (0x10 | 0x11, 2 | 3) | (0x25, 3));
            assert_eq!(check::fields(0, &i).is_ok(), optional, "{op:#x} r{n} absent");
        }
    }
    assert!(asm::parse("tdef.fx32 t0, lrm=0, 1x1, -, frac=31").is_ok());
    assert!(asm::parse("tdef.fx32 t0, lrm=0, 1x1, -, frac=32").is_err());
}

/// Every opcode has one entry in the manual, with the same five headings in the same order; its encoding names its code.
#[test]
fn the_manual_has_an_entry_for_each() {
    let manual = include_str!("../../../docs/spec/device.md");
    assert_eq!(entries(manual), Ok(()));
    // an entry that lost a heading, a code or its name is noticed
    for (from, to) in [
        ("- **Faults** S[r0] negative.\n", ""),
        ("- **Encoding** `2b`;", "- **Encoding** `2a`;"),
        ("### TOPK\n", "### TOPQ\n"),
        ("### SGET, SPUT\n", "### SGET\n"),
        ("### BCT\n", "### BCT, MATV\n"),
    ] {
        assert!(manual.contains(from), "{from}");
        assert!(entries(&manual.replacen(from, to, 1)).is_err(), "{from}");
    }
}

/// Why the instructions of the manual are not those of the device.
fn entries(manual: &str) -> Result<(), String> {
    let section = manual.split("\n## Instructions\n").nth(1).and_then(|s| s.split("\n## ").next());
    let mut left: Vec<Opcode> = Opcode::ALL.to_vec();
    for entry in section.ok_or("no section")?.split("\n### ").skip(1) {
        let (title, body) = entry.split_once('\n').ok_or(entry)?;
        let headings: Vec<&str> =
            body.split("- **").skip(1).filter_map(|part| part.split("**").next()).collect();
        if headings != ["Operands", "Encoding", "Semantics", "Faults", "Cycles"] {
            return Err(format!("{title} has {headings:?}"));
        }
        let encoding =
            body.split("**Encoding**").nth(1).and_then(|s| s.split("- **").next()).unwrap_or_default();
        for name in title.split(", ") {
            let at = left.iter().position(|op| op.text().to_uppercase() == name);
            let op = left.remove(at.ok_or(format!("{name} is no opcode, or has two entries"))?);
            if !encoding.contains(&format!("`{:02x}`", op as u8)) {
                return Err(format!("{name}: its code is not in {encoding:?}"));
            }
        }
    }
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?} have no entry")) }
}

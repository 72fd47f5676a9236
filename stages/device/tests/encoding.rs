//! Every instruction survives its encoding and its text, over random valid instructions.

use mica_device::access::Strides;
use mica_device::format::Format;
use mica_device::isa::{
    Broadcast, INSTR_BYTES, Instr, MatvFlags, NONE, Opcode, ReduceOp, SCALARS, ScalarOp, TILES, UnaryOp,
    VectorOp, decode, encode,
};
use mica_device::layout::WeightFormat;
use mica_device::signature::{Flags, Operand, signature};
use mica_device::{asm, check, disasm};
use proptest::prelude::*;

/// A valid instruction of `op`, from enough random numbers.
fn instruction(op: Opcode, n: &[u64; 16], wait: [u8; 5], src: u32) -> Instr {
    let sig = signature(op);
    let mut i = Instr::new(op);
    let pick = |len: usize, k: usize| (n[k] as usize) % len;
    i.flags = match sig.flags {
        Flags::None => 0,
        Flags::Format => Format::ALL[pick(Format::ALL.len(), 0)].code(),
        Flags::Scalar => ScalarOp::ALL[pick(ScalarOp::ALL.len(), 0)] as u8 | ((n[1] & 1) << 7) as u8,
        Flags::Matv => {
            let weight = [WeightFormat::I4, WeightFormat::I8, WeightFormat::F16][pick(3, 0)];
            let scaled = weight != WeightFormat::F16;
            MatvFlags { weight, scale_f32: scaled && n[1] & 1 != 0, zero: scaled && n[1] & 2 != 0 }.code()
        }
        Flags::Binary => {
            VectorOp::ALL[pick(VectorOp::ALL.len(), 0)] as u8
                | (Broadcast::ALL[pick(Broadcast::ALL.len(), 1)] as u8) << 4
        }
        Flags::Immediate => VectorOp::ALL[pick(VectorOp::ALL.len(), 0)] as u8,
        Flags::Unary => UnaryOp::ALL[pick(UnaryOp::ALL.len(), 0)] as u8,
        Flags::Reduce => ReduceOp::ALL[pick(ReduceOp::ALL.len(), 0)] as u8 | ((n[1] & 1) << 4) as u8,
        Flags::Accumulate => (n[0] & 1) as u8,
    };
    for (k, operand) in sig.operands.iter().enumerate() {
        let v = n[4 + k];
        let below = |limit: u8| (v % u64::from(limit)) as u8;
        let or_none = |limit: u8| {
            if v & (1 << 40) != 0 { NONE } else { below(limit) }
        };
        match *operand {
            Operand::Scalar(r) => i.r[r] = below(SCALARS),
            Operand::ScalarOrNone(r) => i.r[r] = or_none(SCALARS),
            Operand::Tile(r) => i.r[r] = below(TILES),
            Operand::TileOrNone(r) => i.r[r] = or_none(TILES),
            Operand::Frac(r) if i.flags == Format::Fx32.code() => i.r[r] = below(32),
            Operand::Frac(_) => {}
            Operand::ScalarOrZ(r) if i.flags & 0x80 == 0 => i.r[r] = below(SCALARS),
            Operand::ScalarOrZ(_) | Operand::Z(_) | Operand::SignedZ(_) | Operand::Shape => i.z = v,
            Operand::Strides => {
                i.z = Strides {
                    rows: v as u16,
                    len: (v >> 16) as u16,
                    from: (v >> 32) as u16,
                    to: (v >> 48) as u16,
                }
                .code();
            }
            Operand::X(_) | Operand::Imm => i.x = v as u32,
            Operand::Y(_) => i.y = v as u32,
        }
    }
    i.wait = wait;
    i.src = src;
    i
}

proptest! {
    #[test]
    fn round_trips(n: [u64; 16], wait: [u8; 5], src: u32) {
        for &op in Opcode::ALL {
            let i = instruction(op, &n, wait, src);
            prop_assert_eq!(check::fields(0, &i), Ok(()));
            prop_assert_eq!(Instr::decode(0, &i.encode()), Ok(i));
            let text = disasm::line(&i);
            prop_assert_eq!(asm::parse(&text), Ok(vec![i]), "{}", text);
        }
    }

    /// Any 32 bytes either decode to what encodes to them, or name their opcode.
    #[test]
    fn decoding_is_total(bytes: [u8; INSTR_BYTES]) {
        if let Ok(i) = Instr::decode(0, &bytes) {
            prop_assert_eq!(i.encode(), bytes);
        } else {
            prop_assert_eq!(Opcode::from_code(bytes[0]), None);
        }
    }
}

#[test]
fn a_program_reads_back_from_its_listing() {
    let text = "
        sli s16, value=-3
        loop s17, s16, body=1
        salu.add s18, s17, -8 @1.2
        tdef.fx32 t0, lrm=0x40, 1x128, -, frac=20
        dld l2=0x1000, bytes=256, -, s1, -, off=64 ?array-2
        matv.i8.s32.zero t1, t2, l2=0x1000, rows=64, group=128 ?in-1 @3.17
        vbin.mul.cyclic t1, t1, t3
        vbini.add t1, t1, 1e-6
        vun.round.bf16 t1, t1
        halt ; the end
    ";
    let program = asm::parse(text).unwrap();
    insta::assert_snapshot!(disasm::listing(&program), @"
         0  sli s16, value=-3
         1  loop s17, s16, body=1
         2  salu.add s18, s17, -8 @1.2
         3  tdef.fx32 t0, lrm=0x40, 1x128, -, frac=20
         4  dld l2=0x1000, bytes=256, -, s1, -, off=64 ?array-2
         5  matv.i8.s32.zero t1, t2, l2=0x1000, rows=64, group=128 ?in-1 @3.17
         6  vbin.mul.cyclic t1, t1, t3
         7  vbini.add t1, t1, 1e-6
         8  vun.round.bf16 t1, t1
         9  halt
    ");
    assert_eq!(asm::parse(&disasm::listing(&program)).unwrap(), program);
    assert_eq!(decode(&encode(&program)).unwrap(), program);
}

#[test]
fn refusals_name_the_place() {
    for (text, message) in [
        ("frob", "line 1: `frob` is no mnemonic"),
        ("\nsli s1", "line 2: sli has 2 operands, found 1"),
        ("vbin.mul t0, t1, t2", "line 1: `mul` is no suffix"),
        ("vun.exp t0, t64", "instruction 0 (vun): r1 = 64 is no tile register"),
        ("dld l2=1, byte=2, -, s1, -, off=0", "line 1: `byte=2` is no operand of that name"),
        ("nop ?moon-1", "line 1: `?moon-1` is no wait or source"),
    ] {
        assert_eq!(asm::parse(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn checks_find_what_is_no_program() {
    let checked = |text: &str| check::check(&asm::parse(text).unwrap()).err().map(|e| e.to_string());
    assert_eq!(checked("nop\nhalt"), None);
    assert_eq!(checked("nop").unwrap(), "the program does not end with halt");
    assert_eq!(
        checked("loop -, s1, body=1\nhalt").unwrap(),
        "instruction 0: a loop over the next 1 instructions leaves the program"
    );
    assert_eq!(
        checked("loop -, s1, body=2\nloop -, s1, body=2\nnop\nnop\nhalt").unwrap(),
        "instruction 1: a loop over the next 2 instructions leaves the loop around it"
    );
    let mut stray = Instr::new(Opcode::Nop);
    stray.y = 1;
    assert_eq!(
        check::fields(5, &stray).unwrap_err().to_string(),
        "instruction 5 (nop): the unused field y is not zero"
    );
}

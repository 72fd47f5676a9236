//! What can be said to the debugger, and how it is read.

use mica_device::format::Format;

/// The words there are.
pub const HELP: &str = "\
step [N]            go on by one instruction, or N
next                go on to the next op
layer               go on to the next layer
continue            go on to the next breakpoint, or the end
break [WHERE]       stop at an instruction's number, PART, PART:OP or OP; without, list them
delete WHERE        forget a breakpoint
dump [OP]           what the last op left; with OP, show what it leaves whenever it ends
print tN | sN       a tile, a scalar
print lrm AT BYTES [FORMAT]      local register memory; FORMAT is f32, f16, bf16, i32, i8, fx32.F
print l2 AT BYTES [FORMAT]       L2
print EDGE AT BYTES [FORMAT]     an entry's bytes, or `constants`
regs                scalars that are not 0
tiles               defined tiles
list [N]            the instructions around this one
where               this instruction again, with what it reads
events              saturations, overflows and values that are not finite, by op
quit                end the run here
help                this
Words may be cut short as long as they begin as one of these does: s, n, c, b, p, q.
";

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Some instructions more.
    Step(u64),
    /// To the next op.
    Next,
    /// To the next layer.
    Layer,
    /// To the next breakpoint.
    Continue,
    /// List breakpoints, or set one.
    Break(Option<String>),
    /// Forget one.
    Delete(String),
    /// What the last op left, or from now on what this one leaves.
    Dump(Option<String>),
    /// Some memory.
    Print(Region),
    /// Scalars.
    Registers,
    /// Descriptors.
    Tiles,
    /// Instructions around this one, so many on either side.
    List(usize),
    /// This one.
    Where,
    /// Counted events.
    Events,
    /// The end.
    Quit,
    /// The words.
    Help,
}

/// Something to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Region {
    /// A tile by number.
    Tile(u8),
    /// A scalar by number.
    Scalar(u8),
    /// Bytes of a memory: `lrm`, `l2`, `constants` or an entry's name.
    Bytes {
        /// Which.
        memory: String,
        /// First byte.
        at: u64,
        /// Bytes.
        bytes: u64,
        /// How to read them; as bytes where absent.
        format: Option<(Format, u8)>,
    },
}

const WORDS: [&str; 15] = [
    "step", "next", "layer", "continue", "break", "delete", "dump", "print", "regs", "tiles", "list",
    "where", "events", "quit", "help",
];

/// A line's command; `None` of an empty one.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse(line: &str) -> Result<Option<Command>, String> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let Some((first, rest)) = line.split_once(' ').or((!line.is_empty()).then_some((line, ""))) else {
        return Ok(None);
    };
    let rest = rest.trim();
    let word = WORDS.iter().find(|w| w.starts_with(first));
    let whole = |s: &str| (!s.is_empty()).then(|| s.to_string());
    let count = |usual: u64| match rest {
        "" => Ok(usual),
        n => number(n).ok_or_else(|| format!("{n:?} is no number")),
    };
    Ok(Some(match word {
        Some(&"step") => Command::Step(count(1)?.max(1)),
        Some(&"next") => Command::Next,
        Some(&"layer") => Command::Layer,
        Some(&"continue") => Command::Continue,
        Some(&"break") => Command::Break(whole(rest)),
        Some(&"delete") => Command::Delete(rest.into()),
        Some(&"dump") => Command::Dump(whole(rest)),
        Some(&"print") => Command::Print(region(rest)?),
        Some(&"regs") => Command::Registers,
        Some(&"tiles") => Command::Tiles,
        Some(&"list") => Command::List(count(5)? as usize),
        Some(&"where") => Command::Where,
        Some(&"events") => Command::Events,
        Some(&"quit") => Command::Quit,
        Some(&"help") => Command::Help,
        _ => return Err(format!("{first:?} is no command; help lists them")),
    }))
}

fn number(w: &str) -> Option<u64> {
    match w.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => w.parse().ok(),
    }
}

fn region(text: &str) -> Result<Region, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let numbered = |letter: char| words[0].strip_prefix(letter).and_then(|n| n.parse::<u8>().ok());
    let usage =
        || "print tN, sN, or lrm, l2, constants or an entry's name with AT BYTES [FORMAT]".to_string();
    match words.as_slice() {
        [_] => {
            let tile = numbered('t').filter(|&t| t < mica_device::isa::TILES).map(Region::Tile);
            let scalar = || numbered('s').filter(|&s| s < mica_device::isa::SCALARS).map(Region::Scalar);
            tile.or_else(scalar).ok_or_else(usage)
        }
        [memory, at, bytes, rest @ ..] if rest.len() < 2 => {
            let place = |w: &str| number(w).ok_or_else(|| format!("{w:?} is no number"));
            let format =
                rest.first().map(|f| format(f).ok_or_else(|| format!("{f:?} is no format"))).transpose()?;
            Ok(Region::Bytes { memory: (*memory).into(), at: place(at)?, bytes: place(bytes)?, format })
        }
        _ => Err(usage()),
    }
}

/// A format by name; `fx32.F` with its fraction bits.
fn format(word: &str) -> Option<(Format, u8)> {
    let (name, frac) = match word.split_once('.') {
        Some((name, frac)) => (name, frac.parse().ok().filter(|f| *f < 32)?),
        None => (word, 0),
    };
    let format = Format::ALL.iter().copied().find(|f| f.text() == name)?;
    // fixed point means nothing without its fraction bits
    (word.contains('.') == (format == Format::Fx32)).then_some((format, frac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let bytes = |memory: &str, at, bytes, format| {
            Ok(Some(Command::Print(Region::Bytes { memory: memory.into(), at, bytes, format })))
        };
        for (line, expected) in [
            ("", Ok(None)),
            ("  # a remark", Ok(None)),
            ("s", Ok(Some(Command::Step(1)))),
            ("step 0x10", Ok(Some(Command::Step(16)))),
            ("next", Ok(Some(Command::Next))),
            ("c", Ok(Some(Command::Continue))),
            ("b layer3:mlp.gate", Ok(Some(Command::Break(Some("layer3:mlp.gate".into()))))),
            ("break", Ok(Some(Command::Break(None)))),
            ("dump matmul mlp.gate", Ok(Some(Command::Dump(Some("matmul mlp.gate".into()))))),
            ("p t63", Ok(Some(Command::Print(Region::Tile(63))))),
            ("p s16", Ok(Some(Command::Print(Region::Scalar(16))))),
            ("p l2 0x40 8", bytes("l2", 64, 8, None)),
            ("p k_cache.in 0 64 f16", bytes("k_cache.in", 0, 64, Some((Format::F16, 0)))),
            ("print lrm 0 4 fx32.20", bytes("lrm", 0, 4, Some((Format::Fx32, 20)))),
            ("list", Ok(Some(Command::List(5)))),
            ("jump", Err("\"jump\" is no command; help lists them".into())),
            ("step x", Err("\"x\" is no number".into())),
            ("p l2 0 4 f31", Err("\"f31\" is no format".into())),
            ("p l2 0 4 fx32", Err("\"fx32\" is no format".into())),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
        for line in ["p", "p t64", "p s32", "p l2", "p l2 0 4 f32 f32"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}

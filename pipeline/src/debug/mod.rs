//! The debugger of a running kernel: it stops at instructions, ops and layers, steps, and shows registers, tiles,
//! memories, what an op left, and the events counted op by op.
//!
//! It watches every instruction, so that what it shows is what has been done, and changes nothing: a run under it
//! leaves the bits of any other. It knows a loaded program and names of its parts; where these come from, and
//! whether a person or a script speaks, is the command's affair.

mod place;
mod show;
#[cfg(test)]
mod tests;
mod words;

pub use place::{PlaceError, Places};

use mica_device::isa::{Instr, Opcode};
use mica_device::tile::{Tile, register};
use mica_score::table::{Align, Table};
use mica_simulate::{Boundary, Counters, Observer, Program, Tally, Trap, View, listing};
use show::Values;
use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use words::{Command, Region};

/// What is wanted from the start.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Places to stop at.
    pub breaks: Vec<String>,
    /// Ops whose results are shown when they end.
    pub dumps: Vec<String>,
    /// Stop before the first instruction.
    pub step: bool,
    /// Elements of a tile or region shown at most.
    pub elements: usize,
}

/// When it stops next, apart from breakpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Only at breakpoints.
    Break,
    /// After so many instructions more.
    Steps(u64),
    /// When another op begins than this one.
    Op(u32),
    /// When another layer begins than this one.
    Layer(u32),
}

/// What an op stored in L2.
#[derive(Clone, Copy, Debug)]
struct Stored {
    src: u32,
    l2: u32,
    tile: Tile,
}

/// A debugger: `I` speaks, `O` hears.
pub struct Debugger<'p, I, O> {
    program: &'p Program,
    places: Places<'p>,
    input: I,
    out: O,
    /// Whether a person reads: then a prompt is shown.
    prompt: Option<&'static str>,
    elements: usize,
    breaks: Vec<(String, BTreeSet<usize>)>,
    dumps: BTreeSet<u32>,
    until: Until,
    tally: Tally,
    stored: Vec<Stored>,
    /// The instruction before this one.
    before: Option<usize>,
    /// The last boundary that names a tile.
    boundary: Option<(u32, u8)>,
    quit: bool,
    told: io::Result<()>,
}

impl<'p, I: BufRead, O: Write> Debugger<'p, I, O> {
    /// A debugger of a program whose parts have these names.
    ///
    /// # Errors
    /// A wanted place that does not exist, with the nearest.
    pub fn new(
        program: &'p Program,
        parts: &'p [String],
        wanted: &Wanted,
        (input, out): (I, O),
        prompt: Option<&'static str>,
    ) -> Result<Debugger<'p, I, O>, PlaceError> {
        let places = Places::new(program, parts);
        let mut breaks = Vec::new();
        for word in &wanted.breaks {
            breaks.push((word.clone(), places.stops(word)?));
        }
        let mut dumps = BTreeSet::new();
        for word in &wanted.dumps {
            dumps.extend(places.ops(word)?);
        }
        Ok(Debugger {
            program,
            places,
            input,
            out,
            prompt,
            elements: wanted.elements,
            breaks,
            dumps,
            until: if wanted.step { Until::Steps(0) } else { Until::Break },
            tally: Tally::default(),
            stored: Vec::new(),
            before: None,
            boundary: None,
            quit: false,
            told: Ok(()),
        })
    }

    /// What was heard; an error where it could not be written.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn finish(self) -> io::Result<O> {
        self.told.map(|()| self.out)
    }

    /// Tells the end of a call: its events, op by op.
    pub fn ended(&mut self, counters: Counters) {
        self.tally.end(counters);
        let end = if self.quit { "left" } else { "ended" };
        self.say(&format!("{end} after {} instructions: {}", counters.instructions, events(&counters)));
        let table = self.events();
        if counters.events() > 0 {
            self.say(&table);
        }
        (self.before, self.boundary) = (None, None);
    }

    /// Tells a trap, and lets the person look at the device as it was left.
    pub fn trapped(&mut self, trap: &Trap, view: Option<&View<'_>>) {
        let (at, source) = (trap.instruction, self.source(trap.part << 16 | trap.op));
        self.say(&format!("trapped at instruction {at} ({}), {source}: {}", trap.mnemonic, trap.fault));
        let lines = self.around(trap.instruction, 3);
        self.say(&lines);
        let Some(view) = view else { return };
        self.tally.end(view.counters());
        self.operands(view);
        if !self.quit {
            self.speak(view, true);
        }
    }

    fn say(&mut self, text: &str) {
        if self.told.is_ok() {
            self.told = writeln!(self.out, "{text}");
        }
    }

    /// Where an instruction stands.
    fn source(&self, src: u32) -> String {
        let op = self.program.op(src).map_or_else(String::new, |o| format!(" {} {}", o.op, o.label));
        format!("{} op {}{}", self.places.part(src >> 16), src & 0xffff, op.trim_end())
    }

    fn around(&self, at: usize, sides: usize) -> String {
        listing::around(self.program, at, sides, &|src| self.source(src)).trim_end().to_string()
    }

    fn why_stop(&self, at: usize, i: &Instr) -> Option<String> {
        if let Some((word, _)) = self.breaks.iter().find(|(_, all)| all.contains(&at)) {
            return Some(format!("break {word}: "));
        }
        let stop = match self.until {
            Until::Break => false,
            Until::Steps(n) => n == 0,
            Until::Op(src) => i.src != src,
            Until::Layer(layer) => i.src >> 16 != layer,
        };
        stop.then(String::new)
    }

    /// The instruction that comes next, with what it reads.
    fn tell(&mut self, why: &str, view: &View<'_>) {
        self.say(&format!("{why}{}", self.source(view.next.src)));
        self.say(&format!("{:6}  {}", view.instruction, mica_device::disasm::line(view.next)));
        self.operands(view);
    }

    /// Registers and tiles of the next instruction.
    fn operands(&mut self, view: &View<'_>) {
        for line in show::operands(view.next, view) {
            self.say(&line);
        }
    }

    /// Listens until the run goes on; `over` when it can't.
    fn speak(&mut self, view: &View<'_>, over: bool) {
        loop {
            if let Some(prompt) = self.prompt
                && self.told.is_ok()
            {
                self.told = write!(self.out, "{prompt}").and_then(|()| self.out.flush());
            }
            let mut line = String::new();
            match self.input.read_line(&mut line) {
                Ok(n) if n > 0 => {}
                // nobody speaks any more: the run goes on, past its breakpoints too
                _ => {
                    self.until = Until::Break;
                    return;
                }
            }
            match words::parse(&line) {
                Err(e) => self.say(&e),
                Ok(None) => {}
                Ok(Some(command)) => {
                    if self.obey(command, view, over) {
                        return;
                    }
                }
            }
        }
    }

    /// Does what is said; whether the run goes on.
    fn obey(&mut self, command: Command, view: &View<'_>, over: bool) -> bool {
        let until = match command {
            Command::Step(n) => Some(Until::Steps(n)),
            Command::Next => Some(Until::Op(view.next.src)),
            Command::Layer => Some(Until::Layer(view.next.src >> 16)),
            Command::Continue => Some(Until::Break),
            Command::Quit => {
                self.quit = true;
                return true;
            }
            _ => None,
        };
        if let Some(until) = until {
            if over {
                self.say("the call has trapped; look around, or quit");
                return false;
            }
            self.until = until;
            return true;
        }
        match command {
            Command::Break(None) => {
                let all: Vec<String> = self.breaks.iter().map(|(w, at)| format!("{w} at {at:?}")).collect();
                self.say(&if all.is_empty() { "no breakpoints".into() } else { all.join("\n") });
            }
            Command::Break(Some(word)) => match self.places.stops(&word) {
                Ok(at) => {
                    self.say(&format!("break {word} at {at:?}"));
                    self.breaks.push((word, at));
                }
                Err(e) => self.say(&e.to_string()),
            },
            Command::Delete(word) => {
                let before = self.breaks.len();
                self.breaks.retain(|(w, _)| *w != word);
                self.say(&format!("{} breakpoints deleted", before - self.breaks.len()));
            }
            Command::Dump(None) => self.left(view),
            Command::Dump(Some(word)) => match self.places.ops(&word) {
                Ok(ops) => {
                    self.say(&format!("{} ops will be shown as they end", ops.len()));
                    self.dumps.extend(ops);
                }
                Err(e) => self.say(&e.to_string()),
            },
            Command::Print(region) => self.print(&region, view),
            Command::Registers => {
                let text = show::scalars(view, self.program);
                self.say(&text);
            }
            Command::Tiles => {
                let text = show::tiles(view);
                self.say(&text);
            }
            Command::List(sides) => {
                let text = self.around(view.instruction, sides);
                self.say(&text);
            }
            Command::Where => self.tell("", view),
            Command::Events => {
                let text = match view.counters().events() {
                    0 => events(&view.counters()),
                    _ => format!("{}\n{}", events(&view.counters()), self.events()),
                };
                self.say(&text);
            }
            Command::Help => self.say(words::HELP.trim_end()),
            Command::Step(_) | Command::Next | Command::Layer | Command::Continue | Command::Quit => {}
        }
        false
    }

    fn print(&mut self, region: &Region, view: &View<'_>) {
        let text = show::region(region, view, self.program, self.elements);
        self.say(&text.unwrap_or_else(|e| e));
    }

    /// What the last op with a result left, if its tile is still what it was.
    fn left(&mut self, view: &View<'_>) {
        match self.boundary {
            None => self.say("no op with a result in LRM has ended yet"),
            Some((src, t)) => self.result(src, t, view),
        }
    }

    fn result(&mut self, src: u32, t: u8, view: &View<'_>) {
        let counted = self.tally.by_src.get(&src).copied().unwrap_or_default();
        self.say(&format!("{} left t{t}; {}", self.source(src), events(&counted)));
        let text = match view.tile(t) {
            None => format!("t{t} is not defined"),
            Some(tile) => {
                Values::of_tile(&tile, view).map_or_else(|| "past the end".into(), |v| v.text(self.elements))
            }
        };
        self.say(&text);
    }

    /// Shows what an op left once its last instruction is done.
    fn dump_ended(&mut self, view: &View<'_>) {
        let Some(at) = self.before else { return };
        let i = self.program.code()[at];
        if !self.dumps.contains(&i.src) {
            return;
        }
        if i.op == Opcode::Opb
            && let Some(t) = register(i.r[0])
        {
            self.result(i.src, t, view);
        }
        if self.places.last_of(i.src) != Some(at) {
            return;
        }
        let stored: Vec<Stored> = self.stored.iter().copied().filter(|s| s.src == i.src).collect();
        self.stored.retain(|s| s.src != i.src);
        for s in &stored {
            self.say(&format!("{} stored at L2 {:#x}", self.source(i.src), s.l2));
            let bytes = view.l2(s.l2.into(), s.tile.len() * s.tile.format.bytes());
            let text = bytes.map(|b| Values::new(s.tile.format, s.tile.frac, (s.tile.rows, s.tile.cols), &b));
            self.say(&text.map_or_else(|| "past the end".into(), |v| v.text(self.elements)));
        }
        if stored.is_empty() && !self.places.has_result(i.src) {
            self.say(&format!("{} left nothing in LRM or L2", self.source(i.src)));
        }
    }

    /// Events by op, those with any.
    fn events(&self) -> String {
        let right = |c| (c, Align::Right);
        let mut table = Table::new(&[
            ("op", Align::Left),
            right("saturations"),
            right("f16 overflows"),
            right("not finite"),
            right("instructions"),
        ]);
        for (src, c) in self.tally.by_src.iter().filter(|(_, c)| c.events() > 0) {
            let [a, b, d, n] =
                [c.saturations, c.f16_overflows, c.non_finite, c.instructions].map(|n| n.to_string());
            table.row([self.source(*src), a, b, d, n]);
        }
        table.to_string()
    }
}

/// Counted events in words.
fn events(c: &Counters) -> String {
    match c.events() {
        0 => "no event counted".into(),
        _ => format!(
            "{} saturations, {} f16 overflows, {} not finite",
            c.saturations, c.f16_overflows, c.non_finite
        ),
    }
}

impl<I: BufRead, O: Write> Observer for Debugger<'_, I, O> {
    fn watches(&self, _: usize) -> bool {
        true
    }

    fn wants(&self, _: u32) -> bool {
        // everything is seen before the next instruction
        false
    }

    fn before(&mut self, view: &View<'_>) -> ControlFlow<()> {
        let (at, i) = (view.instruction, view.next);
        self.tally.look(view.counters(), Some(i.src));
        self.dump_ended(view);
        if let Until::Steps(n) = self.until
            && n > 0
        {
            self.until = Until::Steps(n - 1);
        }
        if let Some(why) = self.why_stop(at, i) {
            if let (Until::Steps(_), Some(line)) = (self.until, self.before.and_then(|b| self.done(b, view)))
            {
                self.say(&line);
            }
            self.tell(&why, view);
            self.speak(view, false);
        }
        match i.op {
            Opcode::Opb => self.boundary = register(i.r[0]).map(|t| (i.src, t)).or(self.boundary),
            Opcode::Stt if self.dumps.contains(&i.src) => {
                if let (Some(tile), Some(format)) =
                    (view.tile(i.r[0]), mica_device::format::Format::from_code(i.flags))
                {
                    let tile = Tile { format, frac: i.r[2], ..tile };
                    self.stored.push(Stored { src: i.src, l2: i.x, tile });
                }
            }
            _ => {}
        }
        self.before = Some(at);
        match self.quit {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn boundary(&mut self, _: &Boundary<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<I, O> Debugger<'_, I, O> {
    /// What the instruction before left in its first register.
    fn done(&self, at: usize, view: &View<'_>) -> Option<String> {
        show::result(&self.program.code()[at], view)
    }
}

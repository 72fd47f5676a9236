//! Link: parts in order become one kernel. Constants get offsets off the one base pointer, edges get
//! entries, and relocated operands become final.
//!
//! At a seam the residual alone is live, in L2 at address 0, and every engine is idle.
//! Constants that come on edges have an entry a part instead; literals stay below the base pointer.
//! A scalar edge (the position, the tokens) is the call's, for all parts: their shares are the same bytes.

use crate::error::CompileError;
use crate::graph::SEAM;
use crate::ir::build::BASE;
use mica_device::format::Format;
use mica_device::isa::{self, Instr, NONE, Opcode};
use mica_device::layout::ALIGN;
use mica_device::object::{
    Constants, Direction, EdgeUse, Entry, Kernel, Object, OpInfo, Segment, Symbol, WEIGHTS,
};
use mica_device::product::Product;

/// What happens to the residual at a kernel's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seams {
    /// `hidden.in` → seam before the parts, seam → `hidden.out` after them, where they have seams.
    Segment,
    /// Seam → `hidden.out` after the last part that leaves one.
    Whole,
}

/// Whether an edge of an object describes its seam, which only link makes an entry of.
pub(crate) fn is_seam(name: &str) -> bool {
    name.strip_suffix(".in").or_else(|| name.strip_suffix(".out")) == Some(SEAM)
}

/// The kernel in the making.
struct Link<'a> {
    product: &'a Product,
    code: Vec<Instr>,
    kernel: Kernel,
}

/// Links objects, one a part in order; one object may stand many times. Their constants are baked.
///
/// # Errors
/// `Seam` where a part takes a residual that the one before does not leave, or one of another size;
/// `Entries` where there are more edges than entry pointers.
pub fn link(objects: &[&Object], product: &Product, seams: Seams) -> Result<Kernel, CompileError> {
    link_with(objects, product, seams, Constants::Baked)
}

/// Links objects; `constants` says how their weights reach the kernel.
///
/// # Errors
/// As [`link`].
pub fn link_with(
    objects: &[&Object],
    product: &Product,
    seams: Seams,
    constants: Constants,
) -> Result<Kernel, CompileError> {
    check_seams(objects, seams)?;
    let mut l = Link {
        product,
        code: Vec::new(),
        kernel: Kernel {
            code: Vec::new(),
            segments: Vec::new(),
            literals: objects.iter().map(|o| o.literals.clone()).collect(),
            entries: Vec::new(),
            ops: objects.iter().map(|o| o.ops.clone()).collect(),
            parts: objects.iter().map(|o| o.kind.clone()).collect(),
            lrm_peak: objects.iter().map(|o| o.lrm_peak).max().unwrap_or(0),
            l2_peak: objects.iter().map(|o| o.l2_peak).max().unwrap_or(0),
        },
    };
    let edges = || objects.iter().flat_map(|o| &o.edges).filter(|e| !is_seam(&e.name));
    let weights: Vec<Option<String>> = objects
        .iter()
        .zip(0..)
        .map(|(o, part)| (constants == Constants::Edges && o.constants > 0).then(|| weights_name(part)))
        .collect();
    let mut names: Vec<(&str, Direction)> = Vec::new();
    for e in edges() {
        if !names.iter().any(|(n, _)| *n == e.name) {
            names.push((&e.name, e.direction));
        }
    }
    let last_out = objects.iter().rposition(|o| o.seam_out);
    // of a whole no first part takes one: `check_seams` has refused it
    let takes = objects.first().is_some_and(|o| o.seam_in);
    let gives = match seams {
        Seams::Segment => objects.last().is_some_and(|o| o.seam_out),
        Seams::Whole => last_out.is_some(),
    };
    let (hidden_in, hidden_out) = (format!("{SEAM}.in"), format!("{SEAM}.out"));
    if takes {
        names.insert(0, (&hidden_in, Direction::In));
    }
    if gives {
        names.push((&hidden_out, Direction::Out));
    }
    names.extend(weights.iter().flatten().map(|n| (n.as_str(), Direction::In)));
    l.entries(&names)?;
    for (part, o) in objects.iter().enumerate() {
        if part == 0 && takes {
            l.seam(part, o, &hidden_in, Opcode::Dld);
        }
        if !l.code.is_empty() {
            l.control(part, o, Opcode::Fence);
        }
        l.part(part, o)?;
        if gives && Some(part) == last_out {
            l.control(part, o, Opcode::Fence);
            l.seam(part, o, &hidden_out, Opcode::Dst);
        }
    }
    if let Some((part, o)) = objects.iter().enumerate().next_back() {
        l.control(part, o, Opcode::Fence);
        l.control(part, o, Opcode::Halt);
    }
    l.kernel.code = isa::encode(&l.code);
    Ok(l.kernel)
}

/// The edge of a part's constants.
fn weights_name(part: usize) -> String {
    format!("{WEIGHTS}{part}.in")
}

/// Each part that takes a residual is given one of its size.
fn check_seams(objects: &[&Object], seams: Seams) -> Result<(), CompileError> {
    let mut seam: Option<u64> = None;
    for (part, o) in objects.iter().enumerate() {
        let given = part == 0 && seams == Seams::Segment;
        let wrong = match seam {
            _ if !o.seam_in || given => None,
            None => Some("takes a residual that the parts before it do not leave: link one that does".into()),
            Some(bytes) if bytes != o.seam_bytes => Some(format!(
                "takes a residual of {} bytes, but the part before leaves {bytes}",
                o.seam_bytes
            )),
            Some(_) => None,
        };
        if let Some(what) = wrong {
            return Err(CompileError::Seam { part, kind: o.kind.clone(), what });
        }
        if o.seam_out {
            seam = Some(o.seam_bytes);
        } else if !o.seam_in {
            // it knows of no seam, and may have anything where the residual lay
            seam = None;
        }
    }
    Ok(())
}

impl Link<'_> {
    fn entries(&mut self, names: &[(&str, Direction)]) -> Result<(), CompileError> {
        if names.len() > self.product.entries as usize {
            return Err(CompileError::Entries {
                weights: names.iter().filter(|(n, _)| n.starts_with(WEIGHTS)).count(),
                names: names.iter().map(|(n, _)| (*n).to_owned()).collect(),
                limit: self.product.entries,
                product: self.product.name.clone(),
            });
        }
        self.kernel.entries = names
            .iter()
            .zip(1..)
            .map(|(&(name, direction), register)| Entry {
                name: name.into(),
                register,
                direction,
                bytes: 0,
                shares: Vec::new(),
            })
            .collect();
        Ok(())
    }

    /// Gives a part its share of an entry.
    fn share(&mut self, part: usize, e: &EdgeUse) {
        for entry in self.kernel.entries.iter_mut().filter(|n| n.name == e.name) {
            let offset = if e.is_scalar() { 0 } else { entry.bytes.next_multiple_of(ALIGN) };
            entry.bytes = entry.bytes.max(offset + e.bytes);
            entry.shares.push((part as u32, offset, e.clone()));
        }
    }

    /// The register of an edge and the offset of a part's share.
    fn address(&self, part: usize, o: &Object, edge: &str) -> Result<(u8, u64), CompileError> {
        let entry = self.kernel.entries.iter().find(|e| e.name == edge);
        let share = entry.and_then(|e| e.shares.iter().find(|(p, _, _)| *p as usize == part));
        match (entry, share) {
            (Some(e), Some((_, offset, _))) => Ok((e.register, *offset)),
            _ => Err(CompileError::Seam {
                part,
                kind: o.kind.clone(),
                what: format!("addresses the edge `{edge}`, which it does not declare"),
            }),
        }
    }

    /// A segment of `bytes` bytes off the base; its offset.
    fn segment(&mut self, part: usize, bytes: u64, literals: bool) -> u64 {
        let offset = self.kernel.segments.last().map_or(0, |s| s.offset + s.bytes);
        let offset = offset.next_multiple_of(ALIGN);
        if bytes > 0 {
            self.kernel.segments.push(Segment { offset, bytes, part: part as u32, literals });
        }
        offset
    }

    /// The register that a part's constants are addressed by, and their offset from it.
    fn constants(&mut self, part: usize, o: &Object) -> (u8, u64) {
        let name = weights_name(part);
        match self.kernel.entries.iter().find(|e| e.name == name).map(|e| e.register) {
            None => (BASE, self.segment(part, o.constants, false)),
            Some(register) => {
                let (direction, format) = (Direction::In, Format::I8);
                let (shape, bytes) = (vec![o.constants], o.constants);
                self.share(part, &EdgeUse { name, direction, format, frac: 0, shape, bytes });
                (register, 0)
            }
        }
    }

    fn part(&mut self, part: usize, o: &Object) -> Result<(), CompileError> {
        for e in o.edges.iter().filter(|e| !is_seam(&e.name)) {
            self.share(part, e);
        }
        let constants = self.constants(part, o);
        let literals = self.segment(part, o.literals.len() as u64, true);
        let mut code = isa::decode(&o.code).map_err(|e| CompileError::Seam {
            part,
            kind: o.kind.clone(),
            what: format!("is no program: {e}"),
        })?;
        for i in &mut code {
            i.src |= (part as u32) << 16;
        }
        for r in &o.relocations {
            let (register, offset) = match &r.symbol {
                Symbol::Constants => constants,
                Symbol::Literals => (BASE, literals),
                Symbol::Edge(name) => self.address(part, o, name)?,
            };
            let i = &mut code[r.at as usize];
            i.r[1] = register;
            i.z += offset;
        }
        self.code.append(&mut code);
        Ok(())
    }

    /// The op number of link's own instructions in a part: one past the function's.
    fn own(&mut self, part: usize, o: &Object) -> u32 {
        let ops = &mut self.kernel.ops[part];
        if ops.len() == o.ops.len() {
            ops.push(OpInfo { op: "seam".into(), label: SEAM.into() });
        }
        (part as u32) << 16 | o.ops.len() as u32
    }

    fn control(&mut self, part: usize, o: &Object, op: Opcode) {
        let src = self.own(part, o);
        self.code.push(Instr { src, ..Instr::new(op) });
    }

    /// The residual between its edge and the seam.
    fn seam(&mut self, part: usize, o: &Object, name: &str, op: Opcode) {
        let Some(e) = o.edges.iter().find(|e| e.name == name) else { return };
        self.share(part, e);
        let register = self.kernel.entries.iter().find(|n| n.name == name).map_or(0, |n| n.register);
        let src = self.own(part, o);
        self.code.push(Instr {
            r: [0, register, NONE, NONE, 0],
            src,
            y: o.seam_bytes as u32,
            ..Instr::new(op)
        });
    }
}

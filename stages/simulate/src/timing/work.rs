//! What an instruction does apart from the time it takes: multiplications, and bytes of L2 and of local register
//! memory that it reads or writes. The tiles are taken at the size that they have now.

use crate::error::Fault;
use mica_device::access::{Memory, NoAccess, Strides, TileFile};
use mica_device::isa::{Instr, Opcode};
use mica_device::tile::matrix;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Multiplications with an addition: of matrices, and of the state and attention products in tiles.
    pub macs: u64,
    /// Bytes read from and written to L2.
    pub l2_bytes: u64,
    /// Bytes read from and written to local register memory.
    pub lrm_bytes: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, o: Work) {
        self.macs += o.macs;
        self.l2_bytes += o.l2_bytes;
        self.lrm_bytes += o.lrm_bytes;
    }
}

/// The work of `i`; `bytes` is the length of a DMA transfer.
pub fn of(i: &Instr, tiles: &TileFile, bytes: u64) -> Result<Work, Fault> {
    let tile = |n: usize| tiles.get(i.r[n]).ok_or(Fault::Undefined { tile: i.r[n] });
    let macs = match i.op {
        Opcode::Matv => {
            let m = matrix(i, tile(1)?.len()).ok_or(Fault::Operand { what: "group", value: i.z as i64 })?;
            m.rows * m.cols
        }
        Opcode::Tmv | Opcode::Tmvt | Opcode::Tout => tile(1)?.len(),
        _ => 0,
    };
    let mut work = Work { macs, ..Work::default() };
    match i.op {
        Opcode::Dld | Opcode::Dst => work.l2_bytes = bytes,
        Opcode::Vmov => {
            // what is copied, not the hull of it
            let s = Strides::of(i);
            work.lrm_bytes = 2 * u64::from(s.rows) * u64::from(s.len) * tile(0)?.format.bytes();
        }
        _ => {
            let accesses = tiles.accesses(i).map_err(|e| match e {
                NoAccess::Undefined(tile) => Fault::Undefined { tile },
                NoAccess::Shape => Fault::Operand { what: "shape", value: i.z as i64 },
            })?;
            for a in accesses {
                let n = a.range.end - a.range.start;
                match a.memory {
                    Memory::L2 => work.l2_bytes += n,
                    Memory::Lrm => work.lrm_bytes += n,
                    Memory::External => {}
                }
            }
        }
    }
    Ok(work)
}

//! The twin of a module on the device: its functions compiled, its weights in the device's formats, run on the
//! simulator. It never asks the evaluator for a value.

use super::Refused;
use super::constants::Constants;
use crate::host;
use mica_compile::Seams;
use mica_device::format::Format;
use mica_device::object::{Direction, EdgeUse, Kernel};
use mica_device::product::Product;
use mica_models::eval::{Data, Tensor, check_inputs};
use mica_models::hir::{Dtype, Function, Module, inline};
use mica_models::twin::{Tensors, Twin, TwinError};
use mica_simulate::{Boundary, Counters, Edges, Machine, Observer, Options, Program};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// The parameter and result that stays on the chip between parts.
const SEAM: &str = "hidden";
/// The edge of experts that are not chosen but given.
const FORCED: &str = "forced_ids.in";

/// What all functions of a twin share.
pub struct Device {
    /// The weights of the whole subtree.
    pub constants: Constants,
    /// The machine.
    pub product: Product,
    /// Fraction bits of the residual.
    pub frac: u8,
    /// Rows for which a cache has room.
    pub capacity: u64,
    /// Experts that every router takes instead of choosing.
    pub forced: Mutex<Option<Vec<i64>>>,
    /// Counted events of all calls.
    pub counters: Mutex<Counters>,
}

/// A module of the twin.
pub struct SimTwin {
    device: Arc<Device>,
    module: Module,
    /// Scope of the module's weights below the twin's root.
    scope: String,
    children: Vec<(String, SimTwin)>,
    compiled: Mutex<BTreeMap<String, Arc<Compiled>>>,
}

/// A function, compiled and linked.
struct Compiled {
    function: Function,
    kernel: Kernel,
    program: Program,
}

impl SimTwin {
    /// The twin of a module whose weights are `device.constants`. Functions are compiled when first called.
    pub fn new(module: &Module, device: Arc<Device>) -> SimTwin {
        SimTwin::below(module, device, String::new())
    }

    /// Experts that every router takes from now on instead of choosing.
    pub fn forced(&self) -> &Mutex<Option<Vec<i64>>> {
        &self.device.forced
    }

    fn below(module: &Module, device: Arc<Device>, scope: String) -> SimTwin {
        let inner = |s: &str| match (scope.is_empty(), s.is_empty()) {
            (true, _) => s.to_string(),
            (_, true) => scope.clone(),
            _ => format!("{scope}.{s}"),
        };
        let child = |c: &mica_models::hir::Child| {
            (c.name.clone(), SimTwin::below(&c.module, device.clone(), inner(&c.scope)))
        };
        let children = module.children.iter().map(child).collect();
        SimTwin { module: module.clone(), children, scope, device, compiled: Mutex::default() }
    }

    fn compiled(&self, function: &str) -> Result<Arc<Compiled>, TwinError> {
        let mut all = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(function) {
            return Ok(found.clone());
        }
        let known = || self.functions().join(", ");
        let flat = inline(&self.module, function)
            .map_err(|_| TwinError::NoFunction { function: function.into(), known: known() })?;
        let run = |reason: String| TwinError::Run { function: function.into(), reason };
        let made = Arc::new(self.compile(flat).map_err(run)?);
        all.insert(function.into(), made.clone());
        Ok(made)
    }

    fn compile(&self, mut function: Function) -> Result<Compiled, String> {
        let device = &*self.device;
        if !self.scope.is_empty() {
            for p in &mut function.params {
                if p.kind == mica_models::hir::ParamKind::Const {
                    p.name = format!("{}.{}", self.scope, p.name);
                }
            }
        }
        let exports = function.results.iter().map(|(n, _)| n.clone()).filter(|n| n != SEAM).collect();
        let options =
            mica_compile::Options { frac: device.frac, capacity: device.capacity, exports, tokens: 1 };
        let plan = &device.constants.plan;
        let object = mica_compile::compile(&function.name, &function, plan, &device.product, &options)
            .map_err(|e| e.to_string())?;
        let kernel =
            mica_compile::link(&[&object], &device.product, Seams::Segment).map_err(|e| e.to_string())?;
        let program = Program::load(&kernel).map_err(|e| e.to_string())?;
        Ok(Compiled { function, kernel, program })
    }

    fn run(
        &self,
        function: &str,
        inputs: &Tensors,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Tensors, TwinError> {
        let c = self.compiled(function)?;
        check_inputs(&c.function, inputs)?;
        self.simulate(&c, inputs, observer)
            .map_err(|reason| TwinError::Run { function: function.into(), reason })
    }

    fn simulate(
        &self,
        c: &Compiled,
        inputs: &Tensors,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Tensors, String> {
        let device = &*self.device;
        let said = |e: mica_simulate::SimError| e.to_string();
        let constants: [&[u8]; 1] = [&device.constants.segment];
        let mut machine =
            Machine::new(&c.program, &device.product, &constants, Options::default()).map_err(said)?;
        let mut edges = Edges::new(&c.program);
        for e in c.kernel.entries.iter().filter(|e| e.direction == Direction::In) {
            let Some((_, _, edge)) = e.shares.first() else { continue };
            let bytes = match e.name.strip_suffix(".in").and_then(|n| inputs.get(n)) {
                Some(t) => encode(edge, t)?,
                None if e.name == FORCED => self.forced_edge(edge)?,
                None => {
                    return Err(format!("the kernel asks for {}, which the function does not take", e.name));
                }
            };
            edges.set_in(&e.name, bytes).map_err(said)?;
        }
        let counters = match observer {
            None => machine.call(&mut edges),
            Some(o) => machine.call_observed(&mut edges, o),
        };
        *device.counters.lock().unwrap_or_else(PoisonError::into_inner) += counters.map_err(said)?;
        let mut results = Tensors::new();
        for e in c.kernel.entries.iter().filter(|e| e.direction == Direction::Out) {
            let (name, Some((_, _, edge))) = (e.name.trim_end_matches(".out"), e.shares.first()) else {
                continue;
            };
            let Some(v) = c.function.result(name) else { continue };
            results
                .insert(name.into(), decode(edge, c.function.ty(v).dtype, edges.out(&e.name).map_err(said)?));
        }
        Ok(results)
    }

    /// The experts that are given, or −1 for each that the router chooses.
    fn forced_edge(&self, edge: &EdgeUse) -> Result<Vec<u8>, String> {
        let k = edge.shape.iter().product::<u64>() as usize;
        let given = self.device.forced.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ids = given.unwrap_or_else(|| vec![-1; k]);
        match ids.len() == k {
            true => Ok(ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect()),
            false => Err(format!("{} given experts, expected {k}", ids.len())),
        }
    }
}

impl Twin for SimTwin {
    fn functions(&self) -> Vec<String> {
        self.module.functions.iter().map(|f| f.name.clone()).collect()
    }
    fn children(&self) -> Vec<String> {
        self.children.iter().map(|(name, _)| name.clone()).collect()
    }
    fn child(&self, name: &str) -> Option<&dyn Twin> {
        self.children.iter().find(|(n, _)| n == name).map(|(_, t)| t as &dyn Twin)
    }
    fn call(&self, function: &str, inputs: &Tensors) -> Result<Tensors, TwinError> {
        self.run(function, inputs, None)
    }
    fn labelled(&self, function: &str, inputs: &Tensors) -> Option<Tensors> {
        let c = self.compiled(function).ok()?;
        let mut seen = Seen { ops: &c.function, values: Tensors::new() };
        self.run(function, inputs, Some(&mut seen)).ok()?;
        Some(seen.values)
    }
}

/// The last value of each label, at the boundaries of operations whose result is in one tile of its shape.
struct Seen<'a> {
    ops: &'a Function,
    values: Tensors,
}

impl Observer for Seen<'_> {
    fn boundary(&mut self, b: &Boundary<'_>) -> ControlFlow<()> {
        if let (Some(node), Some(tile)) = (self.ops.nodes.get((b.src & 0xffff) as usize), &b.tile)
            && let Some(shape) = node.types[0].known_shape()
        {
            let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
            self.values.remove(&node.label);
            if node.types.len() == 1 && shape.iter().product::<usize>() == tile.values.len() {
                self.values.insert(node.label.clone(), Tensor::f64(&shape, tile.values.to_vec()));
            }
        }
        ControlFlow::Continue(())
    }
}

/// A tensor as it lies on an edge.
fn encode(edge: &EdgeUse, t: &Tensor) -> Result<Vec<u8>, String> {
    if edge.shape.is_empty() {
        let n = t.as_i64().and_then(|v| v.first()).ok_or_else(|| format!("{} is no integer", edge.name))?;
        return Ok(n.to_le_bytes().to_vec());
    }
    let values: Vec<f64> = match &t.data {
        Data::F64(v) => v.clone(),
        Data::I64(v) => v.iter().map(|&n| n as f64).collect(),
    };
    let unit = f64::from(edge.frac).exp2();
    let one = |v: f64| -> Vec<u8> {
        match edge.format {
            Format::F32 => (v as f32).to_le_bytes().to_vec(),
            Format::F16 => half::f16::from_f64(v).to_le_bytes().to_vec(),
            Format::Bf16 => half::bf16::from_f64(v).to_le_bytes().to_vec(),
            // a conversion to integers saturates
            Format::Fx32 => ((v * unit).round_ties_even() as i32).to_le_bytes().to_vec(),
            Format::I32 => (v as i32).to_le_bytes().to_vec(),
            Format::I8 => vec![v as i8 as u8],
        }
    };
    let held: Vec<usize> = edge.shape.iter().map(|&n| n as usize).collect();
    if t.shape == held {
        return Ok(values.into_iter().flat_map(one).collect());
    }
    // a cache: each head's rows at the compiled stride
    let ([heads, rows, dim], [held_heads, capacity, held_dim]) = (&t.shape[..], &held[..]) else {
        return Err(format!("{} is {:?}, and the edge holds {held:?}", edge.name, t.shape));
    };
    if heads != held_heads || dim != held_dim || rows > capacity {
        return Err(format!("{} is {:?}, and the edge holds {held:?}", edge.name, t.shape));
    }
    let mut bytes = vec![0; edge.bytes as usize];
    let width = edge.format.bytes() as usize;
    for h in 0..*heads {
        let row: Vec<u8> =
            values[h * rows * dim..(h + 1) * rows * dim].iter().flat_map(|&v| one(v)).collect();
        bytes[h * capacity * dim * width..][..row.len()].copy_from_slice(&row);
    }
    Ok(bytes)
}

/// An edge's bytes as a tensor.
fn decode(edge: &EdgeUse, dtype: Dtype, bytes: &[u8]) -> Tensor {
    let shape: Vec<usize> = edge.shape.iter().map(|&n| n as usize).collect();
    let how = host::Shape { format: edge.format, frac: edge.frac, elements: edge.shape.iter().product() };
    let values = host::values(bytes, &how);
    match dtype {
        Dtype::I64 => Tensor::i64(&shape, values.iter().map(|&v| v as i64).collect()),
        _ => Tensor::f64(&shape, values),
    }
}

/// Checks that the twin is one of the module.
///
/// # Errors
/// What it lacks or has too many of.
pub fn verified(module: &Module, twin: &SimTwin) -> Result<(), Refused> {
    mica_models::twin::verify(module, twin).map_err(|e| Refused(e.to_string()))
}

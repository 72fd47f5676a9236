//! A kernel on the machine from call to call, its states going out and back in.

use crate::decode::{THREADS, VOCABULARY};
use crate::model::{Model, Words};
use mica_device::object::Kernel;
use mica_simulate::{Counters, Edges, Machine, Options, Program};
use std::time::Instant;

/// A kernel on the machine, as it runs from call to call.
pub struct Run<'m> {
    machine: Machine<'m>,
    edges: Edges<'m>,
    /// States that go out and come back.
    states: Vec<(String, String)>,
    /// Tokens a call.
    pub tokens: u64,
    position: u64,
    words: Words,
}

impl<'m> Run<'m> {
    /// A kernel of so many tokens a call, at its first position.
    pub fn new(
        model: &'m Model,
        kernel: &Kernel,
        program: &'m Program,
        constants: &'m [&'m [u8]],
        tokens: u64,
    ) -> Run<'m> {
        let options = Options { threads: THREADS, strict: false };
        let machine = Machine::new(program, &model.product, constants, options).expect("a machine");
        let mut edges = Edges::new(program);
        let mut states = Vec::new();
        for e in kernel.entries.iter().filter(|e| e.direction.is_given()) {
            let fill = if e.name == "forced_ids.in" { 0xff } else { 0 };
            edges.set_in(&e.name, vec![fill; e.bytes as usize]).expect("an entry");
            let back = e.name.replace(".in", ".out");
            if kernel.entries.iter().any(|o| o.name == back && o.bytes == e.bytes) {
                states.push((back, e.name.clone()));
            }
        }
        Run { machine, edges, states, tokens, position: 0, words: Words(1) }
    }

    /// Seconds of a call, and what the device counted.
    pub fn call(&mut self) -> (f64, Counters) {
        let ids = (0..self.tokens).flat_map(|_| (self.words.next() % VOCABULARY).to_le_bytes());
        self.edges.set_in("token.in", ids.collect::<Vec<u8>>()).expect("an entry");
        self.edges.set_in("pos.in", self.position.to_le_bytes().to_vec()).expect("an entry");
        self.position += self.tokens;
        let start = Instant::now();
        let counters = self.machine.call(&mut self.edges).expect("a call");
        // states return as they are; the cache's rows are few bytes and stay out of the picture
        for (out, back) in &self.states {
            self.edges.turn(out, back).expect("a state");
        }
        (start.elapsed().as_secs_f64(), counters)
    }
}

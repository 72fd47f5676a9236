//! A prompt: several tokens a call, which fetch each matrix once, beside one token a call.

use crate::decode::WARM;
use crate::median;
use crate::model::Model;
use crate::run::Run;
use mica_simulate::Program;

/// Tokens a call.
pub const SEVERAL: u64 = 8;
/// Calls that the clock measures.
const CALLS: u64 = 12;

/// Tokens a second with one token a call and with several, in turn: the medians over calls.
pub fn tokens_a_second(model: &Model) -> [f64; 2] {
    let constants = model.constants();
    let counts = [1, SEVERAL];
    let kernels = counts.map(|tokens| model.kernel(tokens));
    let programs = kernels.each_ref().map(|k| Program::load(k).expect("a kernel that was just linked"));
    let mut runs: Vec<Run<'_>> = kernels
        .iter()
        .zip(&programs)
        .zip(counts)
        .map(|((kernel, program), tokens)| Run::new(model, kernel, program, &constants, tokens))
        .collect();
    let mut samples = [Vec::new(), Vec::new()];
    for call in 0..WARM + CALLS {
        for (run, samples) in runs.iter_mut().zip(&mut samples) {
            // as many tokens of each, at positions alike
            let calls = SEVERAL / run.tokens;
            let seconds: f64 = (0..calls).map(|_| run.call().0).sum();
            if call >= WARM {
                samples.push(SEVERAL as f64 / seconds);
            }
        }
    }
    samples.map(|s| median(s.into_iter()))
}

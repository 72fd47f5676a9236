//! How long the index of a 35 GB `.pth` takes and how much memory: a sparse file, zip64, once with as many
//! tensors as the published fused delivery, once expert by expert. The aim is under 1 s and 100 MB.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::time::Instant;

use mica_fetch::testing::{Content, NewTensor, dictionary, torch_records, write_zip};
use mica_fetch::{Dtype, ListOptions, MappedDelivery, index, list};

const BYTES: u64 = 35 << 30;

fn main() {
    for tensors in [1_300, 61_440] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut file = File::create(dir.path().join("full_model.pth")).expect("a file");
        let each = BYTES / tensors;
        let name = |i| format!("model.layers.{}.mlp.experts.{i}.weight", i % 40);
        let all: Vec<NewTensor> =
            (0..tensors).map(|i| NewTensor::new(&name(i), Dtype::I8, &[each], vec![])).collect();
        let pickle = dictionary(&all);
        let holes = all.iter().map(|_| Content::Hole(each)).collect();
        write_zip(&mut file, &torch_records("full_model", &pickle, holes), |file, zeros| {
            file.seek(SeekFrom::Current(zeros as i64)).map(|_| ())
        });
        let size = file.metadata().expect("the file").len();

        // The peak starts again from here.
        std::fs::write("/proc/self/clear_refs", "5").expect("a peak");
        let before = kilobytes("VmRSS:");
        let start = Instant::now();
        let options = ListOptions { weights: Some("full_model.pth".to_owned()), ..ListOptions::default() };
        let listing = list(dir.path(), &options).expect("a listing");
        let files = MappedDelivery::open(dir.path(), &listing).expect("an open delivery");
        let index = index(&files, &listing).expect("an index");
        let ms = start.elapsed().as_secs_f64() * 1e3;
        assert_eq!(index.tensors.len(), all.len());
        println!(
            "{tensors} tensors, {:.1} GB: {ms:.1} ms, at most {} MB more resident ({} MB are the file's own pages)",
            size as f64 / 1e9,
            (kilobytes("VmHWM:") - before) / 1000,
            kilobytes("RssFile:") / 1000
        );
    }
}

/// A figure of this process.
fn kilobytes(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("the figure");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

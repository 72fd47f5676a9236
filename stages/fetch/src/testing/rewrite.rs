//! The same weights in another published form, or with one thing changed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

use super::writer::{NewTensor, write_safetensors};
use crate::index::{TensorEntry, TensorIndex};
use crate::safetensors_header;

/// The tensors of a safetensors file, in the order of their bytes.
///
/// # Panics
/// If the file is no sound safetensors file.
pub fn read_safetensors(path: &Path) -> Vec<NewTensor> {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let index = index_of(path, &bytes);
    let mut entries: Vec<&TensorEntry> = index.tensors.values().collect();
    entries.sort_by_key(|e| e.extents[0].offset);
    let tensor = |e: &TensorEntry| {
        let begin = e.extents[0].offset as usize;
        NewTensor::new(&e.name, e.dtype, &e.shape, bytes[begin..begin + e.bytes() as usize].to_vec())
    };
    entries.into_iter().map(tensor).collect()
}

/// Replaces `dir/model.safetensors` by `n` shards of about equal size and their index, with the doubled
/// suffix of the published files.
///
/// # Panics
/// If there is no such file, or it has fewer than `n` tensors.
pub fn shard(dir: &Path, n: usize) {
    shard_with_names(dir, n, |i| format!("model.safetensors-{i:05}-of-{n:05}.safetensors"));
}

/// As [`shard`], the shards' names (from number 1) chosen by the caller.
///
/// # Panics
/// As [`shard`].
pub fn shard_with_names(dir: &Path, n: usize, name: impl Fn(usize) -> String) {
    let whole = dir.join("model.safetensors");
    let tensors = read_safetensors(&whole);
    assert!(n > 0 && tensors.len() >= n, "{} tensors make no {n} shards", tensors.len());
    let total: usize = tensors.iter().map(|t| t.bytes.len()).sum();
    let mut shards: Vec<Vec<NewTensor>> = vec![Vec::new()];
    let mut used = 0;
    let count = tensors.len();
    for (i, tensor) in tensors.into_iter().enumerate() {
        let open = shards.len();
        let full = used >= total * open / n || count - i == n - open;
        if full && open < n && !shards[open - 1].is_empty() {
            shards.push(Vec::new());
        }
        used += tensor.bytes.len();
        shards.last_mut().expect("one shard at least").push(tensor);
    }
    let mut weight_map = BTreeMap::new();
    for (i, tensors) in shards.iter().enumerate() {
        let file = name(i + 1);
        write_safetensors(&dir.join(&file), tensors);
        weight_map.extend(tensors.iter().map(|t| (t.name.clone(), file.clone())));
    }
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    fs::write(dir.join("model.safetensors.index.json"), format!("{index:#}\n"))
        .expect("the index is written");
    fs::remove_file(whole).expect("the single file is removed");
}

/// Renames every tensor of the file whose name begins with `from`; other names stay.
///
/// # Panics
/// If the file cannot be rewritten, or no tensor has the prefix.
pub fn rename_prefix(path: &Path, from: &str, to: &str) {
    let mut tensors = read_safetensors(path);
    let mut renamed = 0;
    for tensor in &mut tensors {
        if let Some(rest) = tensor.name.strip_prefix(from) {
            tensor.name = format!("{to}{rest}");
            renamed += 1;
        }
    }
    assert!(renamed > 0, "{}: no tensor begins with {from}", path.display());
    write_safetensors(path, &tensors);
}

/// Splits fused experts, `experts.gate_up_proj` `[E, 2I, H]` and `experts.down_proj` `[E, H, I]`, into
/// `experts.N.{gate,up,down}_proj.weight`, as transformers saves a text-only model.
///
/// # Panics
/// If the file cannot be rewritten, or has no fused experts.
pub fn split_experts(path: &Path) {
    let mut out = Vec::new();
    let before = read_safetensors(path);
    for tensor in &before {
        if let Some(base) = tensor.name.strip_suffix("gate_up_proj") {
            for (e, rows) in outer(tensor).into_iter().enumerate() {
                let (gate, up) = halves(&rows);
                out.push(NewTensor { name: format!("{base}{e}.gate_proj.weight"), ..gate });
                out.push(NewTensor { name: format!("{base}{e}.up_proj.weight"), ..up });
            }
        } else if let Some(base) = tensor.name.strip_suffix("experts.down_proj") {
            for (e, rows) in outer(tensor).into_iter().enumerate() {
                out.push(NewTensor { name: format!("{base}experts.{e}.down_proj.weight"), ..rows });
            }
        } else {
            out.push(tensor.clone());
        }
    }
    assert!(out.len() > before.len(), "{}: no fused experts", path.display());
    write_safetensors(path, &out);
}

/// Applies `edit` to one tensor's bytes, in place: nothing else in the file moves.
///
/// # Panics
/// If there is no such tensor, or its length would change.
pub fn edit_tensor(path: &Path, name: &str, edit: impl FnOnce(&mut [u8])) {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let index = index_of(path, &bytes);
    let entry = index.get(name).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let begin = entry.extents[0].offset;
    let mut data = bytes[begin as usize..][..entry.bytes() as usize].to_vec();
    edit(&mut data);
    let mut file = fs::File::options().write(true).open(path).expect("the file can be written");
    file.seek(SeekFrom::Start(begin)).expect("the tensor can be reached");
    file.write_all(&data).expect("the tensor is written");
}

/// Leaves one tensor out of the file.
///
/// # Panics
/// If there is no such tensor.
pub fn remove_tensor(path: &Path, name: &str) {
    let mut tensors = read_safetensors(path);
    let before = tensors.len();
    tensors.retain(|t| t.name != name);
    assert!(tensors.len() < before, "{}: no tensor {name}", path.display());
    write_safetensors(path, &tensors);
}

fn index_of(path: &Path, bytes: &[u8]) -> TensorIndex {
    let tensors = safetensors_header::read(path, 0, bytes).unwrap_or_else(|e| panic!("{e}"));
    TensorIndex { tensors }
}

/// The entries of a tensor's outermost axis, each a tensor of its own.
pub(super) fn outer(tensor: &NewTensor) -> Vec<NewTensor> {
    let (count, rest) = tensor.shape.split_first().expect("a tensor with an axis");
    let each = tensor.bytes.len() / *count as usize;
    tensor
        .bytes
        .chunks_exact(each)
        .map(|b| NewTensor::new(&tensor.name, tensor.dtype, rest, b.to_vec()))
        .collect()
}

/// The upper and the lower half of the rows.
pub(super) fn halves(tensor: &NewTensor) -> (NewTensor, NewTensor) {
    let mut shape = tensor.shape.clone();
    assert_eq!(shape[0] % 2, 0, "{}: an odd number of rows has no halves", tensor.name);
    shape[0] /= 2;
    let (a, b) = tensor.bytes.split_at(tensor.bytes.len() / 2);
    let half = |bytes: &[u8]| NewTensor::new(&tensor.name, tensor.dtype, &shape, bytes.to_vec());
    (half(a), half(b))
}

//! Archives whose records, pickle and tensors do not go together, then what no table can list.

use mica_dtype::Dtype;
use proptest::prelude::*;

use super::*;
use crate::testing::{
    Content, NewTensor, Record, check_torch, dictionary, torch_bytes, torch_records, zip_bytes,
};

fn parse(bytes: &[u8]) -> Result<BTreeMap<String, TensorEntry>, FetchError> {
    read(Path::new("m.pth"), 0, bytes)
}

fn tensors() -> Vec<NewTensor> {
    vec![
        NewTensor::f32("a", &[2, 3], &[0.5; 6]),
        NewTensor::new("b", Dtype::U8, &[5], vec![7; 5]),
        NewTensor::new("none", Dtype::BF16, &[3, 0], vec![]),
        NewTensor::i64("scalar", &[], &[-1]),
    ]
}

/// A pickle of one tensor `a`: offset, shape and strides in a float storage `0` of `elements`.
fn view(elements: u8, offset: u8, shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let ints = |values: &[u8]| {
        let each: Vec<u8> = values.iter().flat_map(|&v| [b'K', v]).collect();
        [b"(", &each[..], b"t"].concat()
    };
    [
        b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage\
            ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK",
        &[elements][..],
        b"tQK",
        &[offset],
        &ints(shape),
        &ints(strides),
        b"\x89ccollections\nOrderedDict\n)RtRs.",
    ]
    .concat()
}

/// An archive of this pickle and these storages' sizes.
fn archive(pickle: &[u8], storages: &[usize]) -> Vec<Record> {
    torch_records("m", pickle, storages.iter().map(|&size| Content::Bytes(vec![0; size])).collect())
}

fn text(name: &str, text: &str) -> Record {
    Record { name: name.to_owned(), content: Content::Bytes(text.as_bytes().to_vec()) }
}

#[test]
fn what_is_written_is_read() {
    let tensors = tensors();
    let bytes = torch_bytes("m", &tensors);
    let read = parse(&bytes).unwrap();
    assert_eq!(read.len(), tensors.len());
    for t in &tensors {
        let entry = &read[&t.name];
        let [Extent { file: 0, offset, len }] = entry.extents[..] else { panic!("{entry:?}") };
        assert_eq!((entry.dtype, &entry.shape), (t.dtype, &t.shape));
        assert_eq!(&bytes[offset as usize..][..len as usize], &t.bytes[..]);
    }
}

#[test]
fn views_that_are_taken() {
    for (shape, strides, offset, begin, len) in [
        (&[2, 3][..], &[3, 1][..], 0, 0, 24),
        (&[6], &[1], 0, 0, 24),
        (&[2], &[1], 4, 16, 8),
        (&[], &[], 5, 20, 4),
        // The stride of an axis of one entry, and any stride of an empty tensor, says nothing.
        (&[1, 3], &[77, 1], 0, 0, 12),
        (&[0, 3], &[9, 9], 6, 24, 0),
    ] {
        let bytes = zip_bytes(&archive(&view(6, offset, shape, strides), &[24]));
        let entry = parse(&bytes).unwrap().remove("a").unwrap();
        let storage = zip::records(&bytes).unwrap()["m/data/0"].start;
        assert_eq!(
            entry.extents,
            [Extent { file: 0, offset: storage + begin, len }],
            "{shape:?} {strides:?}"
        );
    }
}

#[test]
fn tied_weights_share_a_storage() {
    let one = |name: &str| NewTensor::f32(name, &[2], &[1.0, 2.0]);
    let pickle = dictionary(&[one("embed"), one("head")]);
    // The second storage's key, `1`, becomes `0`.
    let at = pickle.windows(6).rposition(|w| w == b"\x01\x00\x00\x001q").unwrap();
    let mut tied = pickle;
    tied[at + 4] = b'0';
    let read = parse(&zip_bytes(&archive(&tied, &[8]))).unwrap();
    assert_eq!(read["embed"].extents, read["head"].extents);
}

#[test]
fn one_refusal_a_rule() {
    let sound = || archive(&dictionary(&tensors()), &[24, 5, 0, 8]);
    let with = |edit: &dyn Fn(&mut Vec<Record>)| {
        let mut records = sound();
        edit(&mut records);
        zip_bytes(&records)
    };
    let renamed = |from: &str, to: &str| {
        with(&|records| {
            for record in records.iter_mut().filter(|r| r.name == from) {
                record.name = to.to_owned();
            }
        })
    };
    let viewed =
        |offset, shape: &[u8], strides: &[u8]| zip_bytes(&archive(&view(6, offset, shape, strides), &[24]));
    assert!(parse(&zip_bytes(&sound())).is_ok());
    let legacy = [LEGACY_MAGIC, b"\x80\x02M\xe9\x03."].concat();
    for (bytes, said) in [
        // Something else.
        (legacy, "torch.save's format from before torch 1.6"),
        (b"<html>".to_vec(), "an HTML or XML page, and torch.save writes a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "a Git LFS pointer"),
        (vec![], "no zip archive"),
        // The archive.
        (zip_bytes(&[text("a.txt", "x")]), "has no data.pkl"),
        (renamed("m/data.pkl", "m/x/data.pkl"), "has no data.pkl"),
        (renamed("m/version", "n/version"), "n/version is not in the folder m"),
        (
            with(&|records| records.push(text("m/constants.pkl", "x"))),
            "TorchScript program (m/constants.pkl)",
        ),
        (with(&|records| records.push(text("m/code/__torch__.py", "x"))), "TorchScript program"),
        (with(&|records| records[3] = text("m/byteorder", "big")), "the byte order is \"big\""),
        // Pickle and storages.
        (renamed("m/data/1", "m/data/9"), "no tensor is in record m/data/9"),
        (with(&|records| _ = records.remove(5)), "storage 1, and the archive has no record m/data/1"),
        (
            with(&|records| records[5] = text("m/data/1", "1234")),
            "m/data/1 has 4 bytes, and the pickle says 5",
        ),
        (zip_bytes(&archive(b"\x80\x02}.", &[3])), "no tensor is in record m/data/0"),
        (zip_bytes(&archive(b"\x80\x02cos\nsystem\n.", &[])), "m/data.pkl, byte 2: it asks for os.system"),
        // Tensors.
        (viewed(0, &[3, 2], &[1, 3]), "tensor a: shape [3, 2] with strides [1, 3] is not contiguous"),
        (viewed(0, &[2], &[2]), "not contiguous"),
        (viewed(0, &[2], &[0]), "not contiguous"),
        (viewed(0, &[2, 3], &[1]), "not contiguous"),
        (viewed(0, &[7], &[1]), "tensor a ends at element 7 of storage 0, which has 6"),
        (viewed(5, &[2], &[1]), "tensor a ends at element 7"),
        (viewed(7, &[0], &[1]), "tensor a ends at element 7"),
        (viewed(0, &[255; 9], &[1; 9]), "overflows"),
    ] {
        let message = parse(&bytes).unwrap_err().to_string();
        assert!(message.starts_with("m.pth: "), "{message}");
        assert!(message.contains(said), "gave: {message}\n not: {said}");
    }
}

#[test]
fn one_storage_described_in_two_ways() {
    let one = |name: &str, n| NewTensor::new(name, Dtype::U8, &[n], vec![0; n as usize]);
    let mut pickle = dictionary(&[one("a", 2), one("b", 3)]);
    let at = pickle.windows(6).rposition(|w| w == b"\x01\x00\x00\x001q").unwrap();
    pickle[at + 4] = b'0';
    let message = parse(&zip_bytes(&archive(&pickle, &[2]))).unwrap_err().to_string();
    assert!(message.contains("describes storage 0 in two ways"), "{message}");
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = torch_bytes("m", &tensors());
    for length in 0..whole.len() {
        assert!(parse(&whole[..length]).is_err(), "{length} of {}", whole.len());
    }
}

/// The sound file with some bytes changed and a piece moved or cut.
fn near_format() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), any::<u8>());
    (prop::collection::vec(edit, 0..6), any::<prop::sample::Index>(), 0usize..40).prop_map(
        |(edits, at, cut)| {
            let mut bytes = torch_bytes("m", &tensors());
            for (at, value) in edits {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if cut > 32 {
                let at = at.index(bytes.len());
                let end = bytes.len().min(at + cut);
                bytes.drain(at..end);
            }
            bytes
        },
    )
}

/// A sound archive around a pickle with some instructions changed.
fn near_pickle() -> impl Strategy<Value = Vec<u8>> {
    let edit = (
        any::<prop::sample::Index>(),
        prop_oneof![any::<u8>(), prop::sample::select(&b"(t}us)\x85RQqhKb"[..])],
    );
    prop::collection::vec(edit, 0..5).prop_map(|edits| {
        let mut pickle = dictionary(&tensors());
        for (at, value) in edits {
            let at = at.index(pickle.len());
            pickle[at] = value;
        }
        zip_bytes(&archive(&pickle, &[24, 5, 0, 8]))
    })
}

proptest! {
    #[test]
    fn anything_near_the_format(bytes in near_format()) {
        check_torch(&bytes);
    }

    #[test]
    fn anything_near_the_pickle(bytes in near_pickle()) {
        check_torch(&bytes);
    }
}

//! What torch writes, and one broken pickle a rule.

use super::*;
use crate::testing::{NewTensor, dictionary};

/// The first 244 bytes of the published `full_model.pth`'s pickle: the dictionary, its first tensor with
/// all the globals, and the second as far as its type. What [`dictionary`] writes begins so.
const PROLOGUE: &[u8] = b"\x80\x02}q\x00(X \x00\x00\x00model.layers.0.linear_attn.A_logq\x01\
    ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03ctorch\nFloatStorage\nq\x04\
    X\x01\x00\x00\x000q\x05X\x03\x00\x00\x00cpuq\x06K\x04tq\x07QK\x00K\x04\x85q\x08K\x01\x85q\x09\x89\
    ccollections\nOrderedDict\nq\x0a)Rq\x0btq\x0cRq\x0dX&\x00\x00\x00model.layers.0.linear_attn.norm.weight\
    q\x0eh\x02((h\x03h\x04";

/// A dictionary and the name of its first entry.
const OPEN: &[u8] = b"\x80\x02}X\x01\x00\x00\x00a";

/// One tensor `a` of two floats, then `tail`.
fn one(tail: &[u8]) -> Vec<u8> {
    [OPEN, &tensor(b"K\x00", b"K\x02\x85", b"K\x01\x85"), tail].concat()
}

/// A tensor of the storage `0` of two floats.
fn tensor(offset: &[u8], size: &[u8], strides: &[u8]) -> Vec<u8> {
    let storage = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n\
        X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ";
    [&storage[..], offset, size, strides, b"\x89ccollections\nOrderedDict\n)RtR"].concat()
}

fn names(pickle: &[u8]) -> Result<Vec<&str>, PickleFault> {
    match read(pickle) {
        Ok(pickled) => Ok(pickled.tensors.iter().map(|(name, _)| *name).collect()),
        Err((_, fault)) => Err(fault),
    }
}

#[test]
fn the_published_prologue() {
    let tensors = [
        NewTensor::f32("model.layers.0.linear_attn.A_log", &[4], &[0.0; 4]),
        NewTensor::f32("model.layers.0.linear_attn.norm.weight", &[32], &[0.0; 32]),
    ];
    let pickle = dictionary(&tensors);
    assert!(pickle.starts_with(PROLOGUE));
    let pickled = read(&pickle).unwrap();
    let (name, tensor) = pickled.tensors[0];
    let storage = Storage { dtype: Dtype::F32, key: "0", elements: 4 };
    assert_eq!((name, tensor.storage, tensor.offset), ("model.layers.0.linear_attn.A_log", storage, 0));
    assert_eq!((pickled.sizes(tensor.shape), pickled.sizes(tensor.strides)), (vec![4], vec![1]));
}

#[test]
fn what_is_written_is_read() {
    for count in [0, 1, 2, 300, 2001] {
        let shape = |i: u64| [vec![], vec![i], vec![2, 3, 5, 7], vec![1 << 40, 0]][i as usize % 4].clone();
        let tensor = |i| NewTensor::new(&format!("t{i}"), Dtype::U8, &shape(i), vec![0; 1]);
        let tensors: Vec<NewTensor> = (0..count).map(tensor).collect();
        let pickle = dictionary(&tensors);
        let pickled = read(&pickle).unwrap();
        assert_eq!(pickled.tensors.len(), tensors.len());
        for (wrote, (name, read)) in tensors.iter().zip(&pickled.tensors) {
            assert_eq!((*name, pickled.sizes(read.shape)), (wrote.name.as_str(), wrote.shape.clone()));
        }
    }
}

#[test]
fn other_forms_of_a_dictionary() {
    let set = one(b"s.");
    // A state_dict: an OrderedDict, with its version numbers as an attribute.
    let ordered = [
        b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(X\x01\x00\x00\x00a",
        &tensor(b"K\x00", b"K\x02\x85", b"K\x01\x85")[..],
        b"u}X\x09\x00\x00\x00_metadataccollections\nOrderedDict\n)R(X\x00\x00\x00\x00}X\x07\x00\x00\x00versionK\x01susb.",
    ]
    .concat();
    let parameter = [
        b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_parameter\n(",
        &tensor(b"K\x00", b"K\x02\x85", b"K\x01\x85")[..],
        b"\x88ccollections\nOrderedDict\n)RtRs.",
    ]
    .concat();
    for pickle in [set, ordered, parameter] {
        assert_eq!(names(&pickle), Ok(vec!["a"]));
    }
}

#[test]
fn one_refusal_a_rule() {
    let size = |size: &[u8]| [OPEN, &tensor(b"K\x00", size, b")")[..], b"s."].concat();
    let long = [b"(", &b"K\x01".repeat(MAX_RANK + 1)[..], b"t"].concat();
    let storage = |bytes: &[u8]| [b"\x80\x02", bytes, b"Q."].concat();
    for (pickle, said) in [
        // The program's frame.
        (vec![], "cut short"),
        (b"\x80\x04\x95".to_vec(), "protocol 2"),
        (b"(lp0\n.".to_vec(), "protocol 2"),
        (b"\x80\x02".to_vec(), "cut short"),
        (b"\x80\x02}".to_vec(), "cut short"),
        (one(b"s.."), "1 bytes follow"),
        (b"\x80\x02}}.".to_vec(), "STOP takes a single value"),
        (b"\x80\x02(}.".to_vec(), "STOP takes a single value"),
        // Globals.
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.".to_vec(), "it asks for os.system;"),
        (b"\x80\x02c__builtin__\neval\n.".to_vec(), "it asks for __builtin__.eval;"),
        (b"\x80\x02ctorch\nload\n.".to_vec(), "it asks for torch.load;"),
        (b"\x80\x02ctorch._utils\n_rebuild_qtensor\n.".to_vec(), "torch._utils._rebuild_qtensor"),
        (b"\x80\x02ccollections\nOrderedDict.__init__\n.".to_vec(), "OrderedDict.__init__"),
        (b"\x80\x02ctorch\nQInt8Storage\n.".to_vec(), "tensors of torch.QInt8Storage"),
        (b"\x80\x02ctorch\nload".to_vec(), "cut short"),
        // Instructions.
        (b"\x80\x02}0.".to_vec(), "instruction POP has no place"),
        (b"\x80\x02}2.".to_vec(), "instruction DUP"),
        (b"\x80\x02(cos\nsystem\no.".to_vec(), "os.system"),
        (b"\x80\x02(ios\nsystem\n.".to_vec(), "instruction INST"),
        (b"\x80\x02\x8c\x02os\x8c\x06system\x93.".to_vec(), "instruction SHORT_BINUNICODE"),
        (b"\x80\x02}\x81.".to_vec(), "instruction NEWOBJ"),
        (b"\x80\x02\x82\x01.".to_vec(), "instruction EXT1"),
        (b"\x80\x02Pid\n.".to_vec(), "instruction PERSID"),
        (b"\x80\x02\xff.".to_vec(), "instruction 0xff"),
        // Stack tricks.
        (b"\x80\x02R.".to_vec(), "more values than there are"),
        (b"\x80\x02}(R.".to_vec(), "more values than there are above the mark"),
        (b"\x80\x02}K\x01(s.".to_vec(), "more values"),
        (b"\x80\x02K\x01t.".to_vec(), "a mark below"),
        (b"\x80\x02q\x00.".to_vec(), "more values"),
        (b"\x80\x02h\x07.".to_vec(), "takes back value 7"),
        (b"\x80\x02j\xff\xff\xff\xff.".to_vec(), "takes back value 4294967295"),
        (b"\x80\x02}(K\x01u.".to_vec(), "SETITEMS takes a dictionary and pairs"),
        (b"\x80\x02K\x01K\x01K\x01s.".to_vec(), "SETITEMS takes"),
        (b"\x80\x02}((K\x01K\x01u.".to_vec(), "SETITEMS takes"),
        (b"\x80\x02}}b.".to_vec(), "BUILD takes"),
        (b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00__d__}sb.".to_vec(), "BUILD takes"),
        ([b"\x80\x02", &b"(".repeat(MAX_MARKS + 1)[..]].concat(), "more than 64 open"),
        ([b"\x80\x02", &b")".repeat(MAX_STACK + 1)[..]].concat(), "more than 1048576 values at once"),
        ([b"\x80\x02)", &b"\x85".repeat(MAX_ITEMS + 1)[..]].concat(), "more than 4194304 values in tuples"),
        // Values.
        (b"\x80\x02X\x02\x00\x00\x00\xff\xff.".to_vec(), "not UTF-8"),
        (b"\x80\x02X\xff\xff\xff\xffa.".to_vec(), "cut short"),
        (b"\x80\x02\x8a\x09\0\0\0\0\0\0\0\0\x01.".to_vec(), "does not fit 64 bits"),
        (b"\x80\x02\x8a\xff\x01.".to_vec(), "cut short"),
        // Tensors.
        (storage(b"K\x01"), "BINPERSID takes"),
        (storage(b"(X\x07\x00\x00\x00storagetX\x01\x00\x00\x00a"), "BINPERSID takes"),
        (storage(b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ\xff\xff\xff\xfft"), "BINPERSID takes"),
        (size(b"K\x01"), "_rebuild_tensor_v2 takes tuples"),
        (size(b"J\xff\xff\xff\xff\x85"), "sizes and strides of 0 or more"),
        (size(b"N\x85"), "sizes and strides of 0 or more"),
        (size(&long), "more than 64 axes"),
        ([OPEN, &tensor(b"J\xff\xff\xff\xff", b")", b")")[..], b"s."].concat(), "REDUCE takes"),
        (b"\x80\x02ccollections\nOrderedDict\n}\x85R.".to_vec(), "REDUCE takes"),
        (b"\x80\x02}}R.".to_vec(), "REDUCE takes"),
        // What it holds.
        (b"\x80\x02K\x01.".to_vec(), "it holds an integer; save the flat dictionary"),
        (b"\x80\x02}X\x05\x00\x00\x00model}s.".to_vec(), "\"model\" is a dictionary, not a tensor"),
        (b"\x80\x02}X\x05\x00\x00\x00epochK\x03s.".to_vec(), "\"epoch\" is an integer, not a tensor"),
        (b"\x80\x02}K\x01K\x02s.".to_vec(), "a key is an integer, not a name"),
        (one(&[b"sX\x01\x00\x00\x00a", &tensor(b"K\x00", b")", b")")[..], b"s."].concat()), "\"a\" is there twice"),
    ] {
        let message = names(&pickle).unwrap_err().to_string();
        assert!(message.contains(said), "{}\n  gave: {message}\n  not:  {said}", pickle.escape_ascii());
    }
}

#[test]
fn a_fault_says_where() {
    let (byte, fault) = read(b"\x80\x02}q\x00cos\nsystem\n.").unwrap_err();
    assert_eq!(
        (byte, fault),
        (5, PickleFault::Global { module: "os".to_owned(), name: "system".to_owned() })
    );
}

#[test]
fn cut_anywhere() {
    let pickle = dictionary(&[NewTensor::f32("a", &[2], &[0.0; 2]), NewTensor::i64("b", &[], &[1])]);
    for length in 0..pickle.len() {
        assert!(read(&pickle[..length]).is_err(), "{length} of {}", pickle.len());
    }
}

/// Values that refer to themselves or share parts cost what their bytes cost, and nothing follows them.
#[test]
fn loops_and_doubling_are_harmless() {
    // A dictionary that is its own value.
    assert!(names(b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.").is_err());
    // A tuple of itself twice, a hundred thousand deep.
    let doubled = [b"\x80\x02)q\x00", &b"h\x00h\x00\x86q\x00".repeat(100_000)[..], b"."].concat();
    assert!(names(&doubled).is_err());
}

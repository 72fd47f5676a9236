//! The same weights in every form in which they are delivered give the same packed layers.

mod common;

use common::{bf16, packed, stack, w4a16};
use mica_digest::Pieces;
use mica_models::analysis::WeightUse;
use mica_models::stack::Part;
use mica_pack::testing::MemoryDelivery;
use mica_pack::{Contents, Digest, Dtype, PackedLayer, Virtual, pack, resolve, unread};
use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Mutex;

const PUBLISHED: &str = "model.language_model.";

fn all_parts(delivery: &mut MemoryDelivery) -> Vec<PackedLayer> {
    let stack = stack();
    stack.parts().into_iter().map(|part| packed(delivery, &stack, part)).collect()
}

/// Cuts fused experts into tensors of their own, scales too.
fn split_experts(delivery: &mut MemoryDelivery) {
    let fused: Vec<String> =
        delivery.tensors.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    for name in fused {
        let (info, bytes) = delivery.remove(&name);
        let (stem, tail) = name.split_once(".experts.").unwrap();
        let (role, ending) = tail.split_once('.').unwrap_or((tail, "weight"));
        let parts: &[&str] = if role == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &[role] };
        let shape = [info.shape[1] / parts.len() as u64, info.shape[2]];
        let size = (shape[0] * shape[1] * info.dtype.bytes()) as usize;
        for (i, piece) in bytes.chunks(size).enumerate() {
            let (expert, part) = (i / parts.len(), parts[i % parts.len()]);
            let name = format!("{stem}.experts.{expert}.{part}.{ending}");
            delivery.insert(&name, info.dtype, &shape, piece.to_vec());
        }
    }
}

#[test]
fn either_prefix_and_either_form_pack_alike() {
    let published = all_parts(&mut bf16());
    let mut text_only = bf16();
    text_only.rename(|name| name.replace(PUBLISHED, "model."));
    assert_eq!(all_parts(&mut text_only), published);
    for mut delivery in [bf16(), text_only] {
        split_experts(&mut delivery);
        assert!(delivery.tensors.keys().any(|name| name.ends_with("mlp.experts.15.up_proj.weight")));
        assert_eq!(all_parts(&mut delivery), published);
    }
}

#[test]
fn quantized_experts_pack_alike_with_their_scales() {
    let fused = all_parts(&mut w4a16());
    let mut split = w4a16();
    split_experts(&mut split);
    assert!(split.tensors.contains_key("model.layers.0.mlp.experts.3.gate_proj.w_scale"));
    assert_eq!(all_parts(&mut split), fused);

    let experts = fused[1].tensor("mlp.experts.gate_up_proj").unwrap();
    assert_eq!((experts.data.dtype, &experts.data.shape[..]), (Dtype::I8, &[16, 128, 128][..]));
    let scale = experts.scale.as_ref().unwrap();
    assert_eq!((scale.dtype, &scale.shape[..]), (Dtype::F16, &[16, 128, 4][..]));
    assert!(fused[1].tensor("mlp.gate.weight").unwrap().scale.is_none());
}

#[test]
fn a_layers_place_and_its_neighbours_do_not_matter() {
    let mut delivery = bf16();
    let stack = stack();
    let before = packed(&mut delivery, &stack, Part::Layer(1));
    let prefix = |layer| format!("{PUBLISHED}layers.{layer}.");
    delivery.rename(|name| match (name.strip_prefix(&prefix(1)), name.strip_prefix(&prefix(2))) {
        (Some(role), _) => prefix(2) + role,
        (_, Some(role)) => prefix(1) + role,
        _ => name.to_owned(),
    });
    assert_eq!(packed(&mut delivery, &stack, Part::Layer(2)), before);
    assert_ne!(packed(&mut delivery, &stack, Part::Layer(1)), before);
}

#[test]
fn roles_stand_in_segment_order() {
    let mut delivery = bf16();
    let stack = stack();
    for part in stack.parts() {
        let layer = packed(&mut delivery, &stack, part);
        let roles: Vec<&str> = layer.tensors.iter().map(|tensor| tensor.role.as_str()).collect();
        assert_eq!(roles.len(), stack.function(part).unwrap().weights().count());
        for group in &layer.fused {
            assert!(group.len() > 1);
            let first = roles.iter().position(|role| *role == group[0]).unwrap();
            assert_eq!(&roles[first..first + group.len()], &group[..]);
        }
    }
    let layer = packed(&mut delivery, &stack, Part::Layer(0));
    let moe = [
        "mlp.shared_expert.gate_proj.weight",
        "mlp.shared_expert.up_proj.weight",
        "mlp.shared_expert_gate.weight",
        "mlp.gate.weight",
    ];
    assert!(layer.fused.iter().any(|group| group == &moe), "{:?}", layer.fused);
    for (role, weight_use) in [
        ("mlp.experts.down_proj", WeightUse::Experts),
        ("linear_attn.out_proj.weight", WeightUse::Matrix),
        ("linear_attn.A_log", WeightUse::Vector),
    ] {
        assert_eq!(layer.tensor(role).unwrap().weight_use, weight_use);
    }
    let embed = packed(&mut delivery, &stack, Part::Embed);
    assert_eq!(embed.tensors[0].weight_use, WeightUse::Table);
}

/// A delivery, and the tensors of it that packing has read.
struct Watched {
    delivery: MemoryDelivery,
    read: Mutex<Vec<String>>,
}

impl Contents for Watched {
    type Error = Infallible;

    fn digest(&mut self, tensor: &Virtual) -> Result<Digest, Infallible> {
        self.delivery.digest(tensor)
    }

    fn bytes(&self, tensor: &Virtual) -> Result<Cow<'_, [u8]>, Infallible> {
        self.read.lock().unwrap().extend(tensor.pieces.iter().cloned());
        self.delivery.bytes(tensor)
    }

    fn pieces(&self, dtype: Dtype, shape: &[u64]) -> Result<Pieces, Infallible> {
        self.delivery.pieces(dtype, shape)
    }

    fn store(&mut self, dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Result<Digest, Infallible> {
        self.delivery.store(dtype, shape, bytes)
    }
}

#[test]
fn only_what_is_laid_out_anew_is_read() {
    let mut delivery = bf16();
    let name = format!("{PUBLISHED}layers.0.linear_attn.conv1d.weight");
    let taps = 4;
    // Bit patterns that no arithmetic would keep: signalling NaN, negative zero, subnormals.
    let (info, _) = delivery.remove(&name);
    let published: Vec<u16> = (0..info.shape[0] * taps).map(|n| 0x7f80 + n as u16).collect();
    let bytes = published.iter().flat_map(|x| x.to_le_bytes()).collect();
    delivery.insert(&name, info.dtype, &info.shape, bytes);

    let resolved = resolve(&delivery, &stack(), Part::Layer(0)).unwrap();
    let mut watched = Watched { delivery, read: Mutex::default() };
    let layer = pack(&resolved, &mut watched).unwrap();
    let Watched { delivery, read } = watched;
    assert_eq!(read.into_inner().unwrap(), [name]);
    let conv = layer.tensor("linear_attn.conv1d.weight").unwrap();
    assert_eq!((&conv.data.shape, conv.data.dtype), (&conv.shape, Dtype::BF16));
    assert_eq!(conv.shape, [taps, info.shape[0]]);
    let bytes = delivery.content(&conv.data).unwrap();
    for (at, bytes) in bytes.chunks(2).enumerate() {
        let (tap, channel) = (at / info.shape[0] as usize, at % info.shape[0] as usize);
        assert_eq!(bytes, published[channel * taps as usize + tap].to_le_bytes());
    }
}

#[test]
fn nothing_is_left_unread_in_silence() {
    let stack = stack();
    for mut delivery in [bf16(), w4a16()] {
        for knowingly in ["model.visual.blocks.0.norm1.weight", "mtp.layers.0.input_layernorm.weight"] {
            delivery.insert(knowingly, Dtype::BF16, &[1], vec![0, 0]);
        }
        let resolved: Vec<_> =
            stack.parts().into_iter().map(|part| resolve(&delivery, &stack, part).unwrap()).collect();
        assert_eq!(unread(&delivery, &stack.naming, &resolved), [""; 0]);

        delivery.insert("model.layers.0.mlp.experts.bias", Dtype::F32, &[1], vec![0; 4]);
        delivery.insert("lm_head.bias", Dtype::F32, &[1], vec![0; 4]);
        let left = unread(&delivery, &stack.naming, &resolved);
        assert_eq!(left, ["lm_head.bias", "model.layers.0.mlp.experts.bias"]);
    }
}

/// What a packed layer is must not change unless the stage's version does.
#[test]
fn golden() {
    assert_eq!(mica_pack::VERSION, 3);
    let stack = stack();
    let digest = |delivery: &mut MemoryDelivery, part| {
        let text = serde_json::to_string(&packed(delivery, &stack, part)).unwrap();
        blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
    };
    let digests = [
        digest(&mut bf16(), Part::Layer(0)),
        digest(&mut bf16(), Part::Layer(3)),
        digest(&mut w4a16(), Part::Layer(0)),
        digest(&mut w4a16(), Part::Head),
    ];
    assert_eq!(digests, ["a634388167740f7c", "fd5e44d94e3a29e8", "801cd2ffa4d78af2", "7fac1f4c98a70a39"]);
}

#[test]
fn a_packed_layer_reads_back() {
    let layer = packed(&mut w4a16(), &stack(), Part::Layer(3));
    let text = serde_json::to_string(&layer).unwrap();
    assert_eq!(serde_json::from_str::<PackedLayer>(&text).unwrap(), layer);
}

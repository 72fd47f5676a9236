//! The device path of the validations: sound functions pass, and a function that is wrong in one thing fails
//! a gate although evaluator and device agree on it, since both are judged by the published results.

use crate::env::Env;
use crate::graph::Call;
use crate::queries::{self, Db, ModelInput};
use crate::session::Session;
use crate::workspace::Workspace;
use mica_cache::{Cache, StampMemo};
use mica_models::testing::Broken;
use mica_score::Verdict;
use mica_score::validation::Report;
use std::path::Path;

fn session(cache: &Path) -> Session {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let workspace = Workspace::load(&root, None).unwrap();
    let env =
        Env::new(Cache::open_for(cache, "test").unwrap(), StampMemo::load(&cache.join("stamps")), 1 << 30);
    Session::open(&workspace, env).unwrap()
}

/// A validation of the session, with one thing broken.
fn broken(s: &Session, name: &str, what: Option<Broken>) -> ModelInput {
    let found = s.facts.iter().position(|f| f.model == name).unwrap();
    let (db, model) = (&s.db, s.models[found]);
    let trial = super::Trial { broken: what, ..(**model.trial(db).as_ref().unwrap()).clone() };
    model.run_as(db, name.to_string(), queries::RunSettings::clone(model.run(db)), None, Some(trial))
}

fn report(s: &Session, model: ModelInput) -> Report {
    let outcome = queries::judged(&s.db, model).unwrap();
    let blob = Db::env(&s.db).cache.get(outcome.digest("report")).unwrap().unwrap();
    mica_cache::decode(queries::VALIDATION_KIND, &blob).unwrap()
}

#[test]
fn each_broken_layer_fails_and_a_sound_one_passes() {
    let dir = tempfile::tempdir().unwrap();
    let s = session(dir.path());
    let table: &[(&str, Option<Broken>)] = &[
        ("ops.attention-layer", None),
        ("ops.attention-layer", Some(Broken::PlainNorms)),
        ("ops.attention-layer", Some(Broken::PositionsDoubled)),
        ("ops.attention-layer", Some(Broken::NoRope)),
        ("ops.attention-layer", Some(Broken::GateQuerySwapped)),
        ("ops.attention-layer", Some(Broken::CacheDropped)),
        ("ops.linear-layer", None),
        ("ops.linear-layer", Some(Broken::PlainNorms)),
        ("ops.linear-layer", Some(Broken::ConvStateZeroed)),
        ("ops.linear-layer", Some(Broken::KeyHeadOrder)),
    ];
    for &(name, what) in table {
        let report = report(&s, broken(&s, name, what));
        let verdict = Verdict::of_all(&report.gates);
        let failed: Vec<&str> =
            report.gates.iter().filter(|g| !g.passed()).map(|g| g.name.as_str()).collect();
        match what {
            None => assert_eq!(verdict, Verdict::Pass, "{name}: {failed:?}"),
            Some(_) => {
                assert_eq!(verdict, Verdict::Fail, "{name} {what:?}");
                let ours = ["tight-cosine", "reference-error"].map(|g| failed.contains(&g));
                assert_eq!(ours, [true, true], "{name} {what:?}: {failed:?}");
            }
        }
    }
}

#[test]
fn what_has_no_attention_is_not_run_again_when_attention_changes() {
    let dir = tempfile::tempdir().unwrap();
    let s = session(dir.path());
    let key = |name: &str, what| queries::compiled(&s.db, broken(&s, name, what), 1, Call::One).unwrap();
    for name in ["ops.linear-layer", "ops.router", "ops.moe-block"] {
        assert_eq!(key(name, None), key(name, Some(Broken::NoRope)), "{name}");
    }
    assert_ne!(key("ops.attention-layer", None), key("ops.attention-layer", Some(Broken::NoRope)));
}

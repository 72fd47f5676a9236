//! What is checked or analyzed: a function of a model at some dimensions, where its weights are, and the
//! machine. The workspace is opened only for a name that stands in it.

use super::Refused;
use super::generated::Index;
use super::published::{self, Captures, Files, Published};
use crate::error::CliError;
use crate::events::Sink;
use crate::obtain::{Obtain, Reach, Roles, Told};
use crate::session::cache_dir;
use crate::synth;
use crate::workspace::{self, Delivery, Device, Machine, Precision, Workspace};
use mica_device::product::Product;
use mica_fetch::CaptureMap;
use mica_models::select::{Selection, model_of, select};
use mica_models::{Part, Stack, describe, described};
use mica_quantize::Recipe;
use serde_json::{Map, Value};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// What selects a model's dimensions and weights.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Asked {
    /// The model's config.json [default: the delivery's, else the published one].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A delivery: its name in the workspace, or its folder.
    #[arg(long, value_name = "NAME|DIR")]
    pub delivery: Option<String>,
    /// The weights [default: the delivery's]: `generated:INDEX.json`, or `random:SEED`.
    #[arg(long, value_name = "SOURCE")]
    pub weights: Option<String>,
    /// The device: its name in the workspace, or a product (qb1, qb4, qb16).
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// The workspace's recipe by which weights are stored on the device.
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
}

/// The workspace, if and when it is needed.
pub struct Places<'a> {
    file: Option<&'a Path>,
    cache: Option<&'a Path>,
    offline: bool,
    loaded: OnceCell<Workspace>,
}

impl<'a> Places<'a> {
    /// A workspace that may be opened: `file`, or the one of the current folder. Deliveries that lie
    /// elsewhere are brought to the cache folder, unless that is forbidden.
    pub fn new(file: Option<&'a Path>, cache: Option<&'a Path>, offline: bool) -> Places<'a> {
        Places { file, cache, offline, loaded: OnceCell::new() }
    }

    /// A delivery of the workspace, what is needed of it here.
    fn delivery(&self, name: &str, roles: Roles) -> Result<Delivery, Refused> {
        let (w, sink) = (self.workspace()?, Sink::default());
        let told = Told::new(&sink);
        let obtain = Obtain::new(w, &cache_dir(w, self.cache), &Reach::of(self.offline), &told);
        obtain.delivery(name, roles).map_err(Refused::because)
    }

    /// The names of the workspace's models, in its own order.
    ///
    /// # Errors
    /// No workspace, or one without a model.
    pub fn models(&self) -> Result<Vec<String>, CliError> {
        let names: Vec<String> = self.load()?.config.model.keys().cloned().collect();
        if names.is_empty() {
            return Err(Refused(
                "the workspace has no model: give the name of a described one (`mica models`)".into(),
            )
            .into());
        }
        Ok(names)
    }

    fn workspace(&self) -> Result<&Workspace, Refused> {
        self.load().map_err(Refused::because)
    }

    /// The workspace; `None` where there is no file of it. One that is there and can't be used is an error, lest what
    /// stands in it be called unknown.
    fn any_workspace(&self) -> Result<Option<&Workspace>, Refused> {
        match self.load() {
            Ok(w) => Ok(Some(w)),
            Err(CliError::NoWorkspace { .. }) => Ok(None),
            Err(e) => Err(Refused::because(e)),
        }
    }

    fn load(&self) -> Result<&Workspace, CliError> {
        if let Some(w) = self.loaded.get() {
            return Ok(w);
        }
        let w = Workspace::load(Path::new("."), self.file)?;
        Ok(self.loaded.get_or_init(|| w))
    }
}

/// Where a delivery's files are.
#[derive(Clone)]
struct Place {
    name: String,
    dir: PathBuf,
    weights: Option<String>,
    config: Option<PathBuf>,
    captures: Option<(PathBuf, CaptureMap)>,
    /// Whether the workspace names it.
    named: bool,
    of_bf16_run: bool,
}

/// A function of a model with all that is known of its surroundings.
pub struct Subject<'a> {
    places: &'a Places<'a>,
    asked: &'a Asked,
    /// The model.
    pub stack: Stack,
    /// The function.
    pub selection: Selection,
    model: Option<workspace::Model>,
    place: Option<Place>,
}

impl<'a> Subject<'a> {
    /// Resolves a selector. Its model is a described one or one of the workspace.
    ///
    /// # Errors
    /// An unknown model or path, a config that does not describe it.
    pub fn new(selector: &str, asked: &'a Asked, places: &'a Places<'a>) -> Result<Subject<'a>, Refused> {
        Subject::of(selector, None, asked, places)
    }

    /// A whole model, with its first so many layers where a number is given. The function is its embedding, as a
    /// whole is none.
    ///
    /// # Errors
    /// As [`Subject::new`], and more layers than the model has.
    pub fn whole(
        name: &str,
        layers: Option<u16>,
        asked: &'a Asked,
        places: &'a Places<'a>,
    ) -> Result<Subject<'a>, Refused> {
        Subject::of(&format!("{name}:{}", Part::Embed), layers, asked, places)
    }

    fn of(
        selector: &str,
        layers: Option<u16>,
        asked: &'a Asked,
        places: &'a Places<'a>,
    ) -> Result<Subject<'a>, Refused> {
        let name = model_of(selector);
        let model = match described().iter().any(|m| m.name == name) {
            true => None,
            false => Some(workspace_model(name, places)?),
        };
        let description = model.as_ref().map_or(name, |m| &m.description);
        let delivery = asked.delivery.as_deref().or(model.as_ref().map(|m| m.delivery.as_str()));
        let place = delivery.map(|d| place(d, places)).transpose()?;
        let mut config = config(description, asked, place.as_ref())?;
        if let Some(layers) = layers {
            synth::cut(name, &mut config, layers).map_err(Refused::because)?;
        }
        let stack = describe(description, &config).map_err(Refused::because)?;
        let path = selector.strip_prefix(name).unwrap_or_default();
        let selection = select(&format!("{description}{path}"), &stack).map_err(Refused::because)?;
        Ok(Subject { places, asked, stack, selection, model, place })
    }

    /// The weights' source, and what it is in words.
    ///
    /// # Errors
    /// Nothing that says where the weights are; a delivery that can't be opened.
    pub fn published(&self) -> Result<(Published, String), Refused> {
        let lacking = || {
            Refused(
                "nothing says where the weights are: name a delivery with --delivery, or give \
                 --weights generated:INDEX.json or random:SEED"
                    .into(),
            )
        };
        let Some(source) = &self.asked.weights else {
            let place = self.with(Roles { weights: true, ..Roles::NONE })?.ok_or_else(lacking)?;
            let files = Files::delivery(&place.dir, place.weights.as_deref(), place.config.as_deref())?;
            return Ok((Published::Files(Box::new(files)), format!("of the delivery {}", place.name)));
        };
        let index = match weights_of(source)? {
            Source::Generated(file) => Index::open(&file)?,
            Source::Random(seed) => Index::random(&self.stack, self.selection.part, seed)?,
        };
        Ok((Published::Generated(Box::new(index)), source.clone()))
    }

    /// The delivery, and what is needed of it here.
    fn with(&self, roles: Roles) -> Result<Option<Place>, Refused> {
        match &self.place {
            Some(p) if p.named => {
                self.places.delivery(&p.name, roles).and_then(|d| named(&p.name, &d, self.places)).map(Some)
            }
            other => Ok(other.clone()),
        }
    }

    /// The captures of the delivery, and what each is called.
    ///
    /// # Errors
    /// No delivery, or one without captures.
    pub fn captures(&self) -> Result<(Captures, CaptureMap), Refused> {
        let place = self.with(Roles { captures: true, ..Roles::NONE })?;
        let Some((file, names)) = place.and_then(|p| p.captures) else {
            return Err(Refused(
                "real inputs are captured ones: name a delivery of the workspace that has `captures` with \
                 --delivery"
                    .into(),
            ));
        };
        Ok((Captures::open(&file)?, names))
    }

    /// The machine.
    ///
    /// # Errors
    /// A name that is neither a device of the workspace nor a product.
    pub fn machine(&self) -> Result<Machine, Refused> {
        let name = self.asked.device.as_deref().or(self.model.as_ref().map(|m| m.device.as_str()));
        machine(name.unwrap_or("qb16"), self.places)
    }

    /// The recipe of a twin.
    ///
    /// # Errors
    /// None was named, and neither the model nor the workspace has just one.
    pub fn recipe(&self) -> Result<Recipe, Refused> {
        let of = &self.places.workspace()?.config.recipe;
        let named = self.asked.recipe.as_deref().or(self.model.as_ref().map(|m| m.recipe.as_str()));
        let only = || of.keys().next().filter(|_| of.len() == 1).map(String::as_str);
        let known = || of.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let Some(name) = named.or_else(only) else {
            return Err(Refused(format!("a twin needs a recipe; name one with --recipe: {}", known())));
        };
        let found = of.get(name).cloned();
        found.ok_or_else(|| Refused(format!("no recipe {name:?}, expected one of: {}", known())))
    }

    /// The recipe of a whole model: the one named, else the one that synthetic deliveries are made for.
    ///
    /// # Errors
    /// A name that the workspace does not have.
    pub fn recipe_or_synthetic(&self) -> Result<Recipe, Refused> {
        match self.has_recipe() {
            true => self.recipe(),
            false => synth::recipe().map_err(Refused::because),
        }
    }

    /// Whether there are weights whose dtypes count, not shapes alone.
    pub fn is_delivered(&self) -> bool {
        self.asked.weights.is_some() || self.place.is_some()
    }

    /// Whether values are rounded where a bfloat16 run of the published model stores them.
    pub fn stored_rounding(&self) -> bool {
        let stated = self.model.as_ref().and_then(|m| m.stored_rounding);
        stated.unwrap_or(self.place.as_ref().is_some_and(|p| p.of_bf16_run))
    }

    /// Whether a recipe was named, by itself or by the workspace's model.
    pub fn has_recipe(&self) -> bool {
        self.asked.recipe.is_some() || self.model.is_some()
    }

    /// Rows for which a twin's caches have room: as many as the model of the workspace says.
    pub fn capacity(&self) -> u64 {
        self.stated_capacity().unwrap_or(256)
    }

    /// The capacity that the workspace's model states.
    pub fn stated_capacity(&self) -> Option<u64> {
        self.model.as_ref().map(|m| m.capacity)
    }

    /// The tokens a call that the workspace's model states.
    pub fn stated_tokens(&self) -> Option<u64> {
        self.model.as_ref().map(|m| m.tokens_per_call)
    }
}

fn workspace_model(name: &str, places: &Places<'_>) -> Result<workspace::Model, Refused> {
    let names = || described().iter().map(|m| m.name.to_string()).collect::<Vec<_>>();
    let no_such = |known: Vec<String>| {
        Refused(format!(
            "no model `{name}` is described or in the workspace, expected one of: {}",
            known.join(", ")
        ))
    };
    let w = places.any_workspace()?.ok_or_else(|| no_such(names()))?;
    let known = || [names(), w.config.model.keys().cloned().collect()].concat();
    w.config.model.get(name).cloned().ok_or_else(|| no_such(known()))
}

/// A delivery of the workspace, or a folder.
fn place(name: &str, places: &Places<'_>) -> Result<Place, Refused> {
    let dir = Path::new(name);
    if places.any_workspace()?.is_some_and(|w| w.config.delivery.contains_key(name)) {
        let delivery = places.delivery(name, Roles { config: true, ..Roles::NONE })?;
        return named(name, &delivery, places);
    }
    match dir.is_dir() {
        true => Ok(Place {
            name: name.into(),
            dir: dir.into(),
            weights: None,
            config: None,
            captures: None,
            named: false,
            of_bf16_run: false,
        }),
        false => Err(Refused(format!("{name:?} is no delivery of the workspace and no folder"))),
    }
}

/// A delivery of the workspace.
fn named(name: &str, d: &Delivery, places: &Places<'_>) -> Result<Place, Refused> {
    let w = places.workspace()?;
    let source = w.path(&d.source);
    let captures = d.captures.as_ref().map(|c| (source.join(&c.file), c.names.clone()));
    let config = d.config.as_ref().map(|c| w.path(c));
    Ok(Place {
        name: name.into(),
        dir: source,
        weights: d.weights.clone(),
        config,
        captures,
        named: true,
        of_bf16_run: d.captures.as_ref().is_some_and(|c| c.precision == Precision::Bf16),
    })
}

fn config(description: &str, asked: &Asked, place: Option<&Place>) -> Result<Map<String, Value>, Refused> {
    if let Some(file) = &asked.config {
        return published::config(file);
    }
    let published = || {
        let model = described().iter().find(|m| m.name == description);
        let model = model.ok_or_else(|| Refused(format!("no model `{description}` is described")))?;
        model.published_config().map_err(Refused::because)
    };
    if let Some(source) = &asked.weights
        && let Source::Generated(file) = weights_of(source)?
    {
        return Ok(Index::open(&file)?.config(&published()?));
    }
    match place {
        Some(p) => published::config(&p.config.clone().unwrap_or_else(|| p.dir.join("config.json"))),
        None => published(),
    }
}

/// Where weights come from if not from a delivery.
enum Source {
    Generated(PathBuf),
    Random(u64),
}

fn weights_of(source: &str) -> Result<Source, Refused> {
    let random = |seed: &str| seed.parse().ok().map(Source::Random);
    let found = match source.split_once(':') {
        Some(("generated", file)) => Some(Source::Generated(file.into())),
        Some(("random", seed)) => random(seed),
        _ => None,
    };
    found.ok_or_else(|| Refused(format!("--weights {source}: expected generated:INDEX.json or random:SEED")))
}

/// A device of the workspace, or a product at its usual rates.
///
/// # Errors
/// A name that is neither.
pub fn machine(name: &str, places: &Places<'_>) -> Result<Machine, Refused> {
    if Product::named(name).is_some() {
        return Device::usual(name).machine(name).map_err(Refused::because);
    }
    let w = places.workspace()?;
    match w.config.device.get(name) {
        Some(d) => d.machine(name).map_err(Refused::because),
        None => {
            let known: Vec<&str> = w.config.device.keys().map(String::as_str).collect();
            Err(Refused(format!(
                "no device {name:?}, expected qb1, qb4, qb16 or one of: {}",
                known.join(", ")
            )))
        }
    }
}

//! temporary
pub const VERSION: u32 = 1;
#[derive(serde::Serialize, serde::Deserialize, Clone, Debug)]
pub struct Report {}
impl Report { pub fn summary(&self) -> String { String::new() } }
pub struct Inputs { pub position: u64 }
pub fn cycles(_: &mica_device::object::Kernel, _: &mica_device::product::Product, _: &mica_device::product::Rates, _: &Inputs) -> Result<Report, String> { Ok(Report {}) }

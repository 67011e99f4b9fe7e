//! x
pub(crate) struct ClusterKey;
impl ClusterKey {
    pub(crate) fn load_or_create(_: &std::path::Path) -> Result<(), std::io::Error> {
        Ok(())
    }
}

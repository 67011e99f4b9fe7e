//! Answers scrapes of the agent's metrics, in a thread of their own: bringing swap back may take minutes, in which an
//! operator wants to see how far it is.
//!
//! Invariant: the thread ends with the agent's work, also when that panics.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::configuration::MetricsRole;
use crate::donate::DonorService;
use crate::failure::Failure;
use crate::metrics;
use crate::metrics::server::MetricsServer;
use crate::observation::Thing;
use crate::registry::Registry;

/// Listens where the configuration says.
pub(super) fn bind(role: &MetricsRole) -> Result<MetricsServer, Failure> {
    let server = MetricsServer::bind(role.listen).map_err(|error| {
        Failure::during(
            format_args!("[metrics] listen = \"{}\"", role.listen),
            format_args!("{error}; name another port"),
        )
    })?;
    tracing::info!("metrics at {}", server.url());
    Ok(server)
}

/// Does `work` while a thread answers scrapes.
pub(super) fn answered_during<T>(
    server: &MetricsServer,
    registry: &Registry,
    donor: Option<&DonorService>,
    work: impl FnOnce() -> T,
) -> T {
    /// A panic of `work` ends the thread, too.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let is_over = AtomicBool::new(false);
    let agent = || Thing::of_agent(json!({ "donor": donor.map(DonorService::status) }));
    std::thread::scope(|scope| {
        scope.spawn(|| metrics::serve(server, registry, &agent, &is_over));
        let _over = Over(&is_over);
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_taken_is_told_with_what_to_do() {
        let (_directory, registry) = Registry::temporary();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let role = |address: &str| -> MetricsRole { toml::from_str(&format!("listen = \"{address}\"")).unwrap() };
        let error = bind(&role(&taken.local_addr().unwrap().to_string())).unwrap_err().to_string();
        assert!(error.contains("[metrics] listen") && error.contains("name another port"), "{error}");
        let server = bind(&role("127.0.0.1:0")).unwrap();
        // It returns, so the thread has ended.
        assert_eq!(answered_during(&server, &registry, None, || 7), 7);
    }
}

//! Answers browsers and monitoring systems, in a thread of its own: bringing swap back may take minutes, in which an
//! operator wants to see how far it is.
//!
//! Invariant: the thread ends with the agent's work, also when that panics.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use spillway_console::failure::Failure;
use spillway_control::registry::Registry;
use spillway_machine::user_group;
use spillway_observe::metrics::{self, Metrics};
use spillway_observe::observation::{Observation, Thing};
use spillway_observe::page::model::PageModel;
use spillway_observe::page::{self, Part};
use spillway_observe::web_server::{Clients, Content, HEALTH_PATH, Request, WebServer};
use spillway_report::cluster::MemberReport;
use spillway_report::donor::AgentReport;
use spillway_report::kind::Kind;
use spillway_sys::socket_file::Admitted;

use super::configuration::MetricsRole;
use crate::donate::DonorService;
use crate::limits;

/// The listening end, and what it gives.
#[derive(Debug)]
pub(super) struct Web {
    server: WebServer,
    has_page: bool,
    /// The cluster's machines, as the agent's work last saw them.
    members: Mutex<Option<Vec<MemberReport>>>,
}

impl Web {
    /// Listens where the configuration says.
    pub(super) fn bind(role: &MetricsRole) -> Result<Self, Failure> {
        let admitted = match &role.group {
            Some(group) => {
                Admitted::Group(user_group::number(group).map_err(|error| Failure::during("[metrics] group", error))?)
            }
            None => Admitted::Owner,
        };
        let server = WebServer::bind(&role.listen, admitted)
            .map_err(|(address, why)| Failure::during(format_args!("[metrics] listen = \"{address}\""), why))?;
        let web = Self { server, has_page: role.page, members: Mutex::new(None) };
        for url in [web.metrics_url(), web.page_url()].into_iter().flatten() {
            tracing::info!("answers at {url}");
        }
        if let Some(path) = web.socket() {
            tracing::info!("answers at unix:{}", path.display());
        }
        Ok(web)
    }

    /// Where metrics are, if a network address has them.
    pub(super) fn metrics_url(&self) -> Option<String> {
        self.server.url(metrics::PATH)
    }

    /// Where the page is, if there is one and a network address has it.
    pub(super) fn page_url(&self) -> Option<String> {
        self.server.url("/").filter(|_| self.has_page)
    }

    /// The UNIX socket that has the same, if there is one.
    pub(super) fn socket(&self) -> Option<&Path> {
        self.server.socket()
    }

    /// The cluster's machines now.
    pub(super) fn tell_members(&self, members: &[MemberReport]) {
        if self.has_page {
            *self.members.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(members.to_vec());
        }
    }

    /// Does `work` while a thread answers. The agent is not asked over its socket, because it may be busy with its swap
    /// device: `donor` is what it would say.
    pub(super) fn answered_during<T>(
        &self,
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
        let agent =
            || Thing::of_agent(AgentReport { donor: donor.map(DonorService::status), ..AgentReport::default() });
        std::thread::scope(|scope| {
            scope.spawn(|| Answers::new(self, registry, &agent).until(&is_over));
            let _over = Over(&is_over);
            work()
        })
    }
}

/// What the answering thread has seen.
struct Answers<'a> {
    web: &'a Web,
    registry: &'a Registry,
    agent: &'a dyn Fn() -> Thing,
    metrics: Metrics,
    page: PageModel,
    start: Instant,
    /// When the page's figures were looked at last.
    looked: Option<Duration>,
}

impl<'a> Answers<'a> {
    fn new(web: &'a Web, registry: &'a Registry, agent: &'a dyn Fn() -> Thing) -> Self {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (metrics, page) = (Metrics::default(), PageModel::new(machine));
        Self { web, registry, agent, metrics, page, start: Instant::now(), looked: None }
    }

    fn until(&mut self, is_over: &AtomicBool) {
        let (web, mut clients) = (self.web, Clients::default());
        while !is_over.load(Ordering::SeqCst) {
            if web.has_page && self.page.is_due(self.start.elapsed()) {
                self.look();
            }
            web.server.serve(&mut clients, limits::METRICS_TURN, &mut |request| self.content(request));
        }
    }

    fn content(&mut self, request: &Request<'_>) -> Result<Content, String> {
        if request.is_local && !request.host.is_none_or(is_this_machine) {
            return Err(
                "metrics and page are for clients that name this machine by its address or as localhost".to_owned()
            );
        }
        if request.path == metrics::PATH {
            return Ok(self.metrics.scrape(&self.observe()));
        }
        if request.path == HEALTH_PATH {
            return Ok(Content::health(&self.observe().complaints()));
        }
        let Some(part) = page::part(request.path) else { return Err(self.signpost()) };
        if !self.web.has_page {
            return Err(self.signpost());
        }
        match part {
            Part::Asset(asset) => Ok(asset.content()),
            Part::Data => {
                let is_fresh = |looked| self.start.elapsed().saturating_sub(looked) < limits::PAGE_LOOK_INTERVAL_MIN;
                if !self.looked.is_some_and(is_fresh) {
                    self.look();
                }
                let members = self.web.members.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                Ok(page::data(self.page.json(unix_s(), members.as_deref())))
            }
        }
    }

    fn signpost(&self) -> String {
        let page = if self.web.has_page { "the page is at /" } else { "the page is off: [metrics] page = true" };
        format!("metrics are at {}, and whether all is well at {HEALTH_PATH}; {page}", metrics::PATH)
    }

    fn look(&mut self) {
        let at = self.start.elapsed();
        self.page.look(at, unix_s(), &self.observe());
        self.looked = Some(at);
    }

    fn observe(&self) -> Observation {
        let mut observation = Observation::gather(self.registry, Some(Kind::Agent)).unwrap_or_else(|failure| {
            // Without the list of what runs there is still what this process knows.
            tracing::warn!("metrics: {failure}");
            Observation::default()
        });
        observation.things.push((self.agent)());
        observation
    }
}

/// Whether a browser that names its server so means this machine. A stranger's name that was made to point here is how
/// a foreign page would read this one (DNS rebinding).
fn is_this_machine(host: &str) -> bool {
    let bare = |host: &str| -> Option<IpAddr> { host.trim_start_matches('[').trim_end_matches(']').parse().ok() };
    let without_port = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_loopback = |name| bare(name).is_some_and(|address| address.is_loopback());
    without_port.eq_ignore_ascii_case("localhost") || is_loopback(without_port) || is_loopback(host)
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use spillway_control::test_support::temporary_registry;

    use super::*;

    fn role(text: &str) -> MetricsRole {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn an_address_that_is_taken_is_told_with_what_to_do() {
        let (_directory, registry) = temporary_registry();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |address: &str| role(&format!("listen = \"{address}\""));
        let error = Web::bind(&at(&taken.local_addr().unwrap().to_string())).unwrap_err().to_string();
        assert!(error.contains("[metrics] listen") && error.contains("name another port"), "{error}");
        let error = Web::bind(&role("listen = \"unix:/x\"\ngroup = \"no such group\"")).unwrap_err().to_string();
        assert!(error.contains("[metrics] group") && error.contains("no such group"), "{error}");
        let web = Web::bind(&at("127.0.0.1:0")).unwrap();
        // It returns, so the thread has ended.
        assert_eq!(web.answered_during(&registry, None, || 7), 7);
    }

    #[test]
    fn the_page_is_off_unless_configured_and_not_for_foreign_names() {
        let (_directory, registry) = temporary_registry();
        let agent = || Thing::of_agent(AgentReport::default());
        let ask_from = |web: &Web, path, host, is_local| {
            Answers::new(web, &registry, &agent).content(&Request { path, host, is_local }).map(|content| content.kind)
        };
        let ask = |web: &Web, path, host| ask_from(web, path, host, true);
        let off = Web::bind(&role("listen = \"127.0.0.1:0\"")).unwrap();
        for path in ["/", "/page.json", "/page.js"] {
            assert!(ask(&off, path, None).unwrap_err().contains("page = true"), "{path}");
        }
        assert_eq!(off.page_url(), None);
        let on = Web::bind(&role("listen = \"127.0.0.1:0\"\npage = true")).unwrap();
        for host in [None, Some("127.0.0.1:7071"), Some("localhost"), Some("[::1]:7071"), Some("LOCALHOST:1")] {
            assert_eq!(ask(&on, "/page.json", host), Ok("application/json"), "{host:?}");
        }
        for host in ["evil.example", "evil.example:7071", "127.0.0.1.evil.example", "10.0.0.1:7071", ""] {
            assert!(ask(&on, "/page.json", Some(host)).is_err(), "{host}");
        }
        let open = ask_from(&on, "/page.json", Some("node1:7071"), false);
        assert_eq!(open, Ok("application/json"), "told twice that other machines may connect");
        assert!(ask(&on, "/metrics", Some("evil.example")).is_err(), "as the page");
        assert!(ask(&off, "/metrics", Some("localhost:7071")).is_ok() && ask(&off, "/metrics", None).is_ok());
        assert!(ask_from(&on, "/metrics", Some("node1:7071"), false).is_ok(), "Prometheus on another machine");
        let health =
            Answers::new(&off, &registry, &agent).content(&Request { path: "/healthz", host: None, is_local: true });
        assert_eq!(health, Ok(Content::health(&[])));
        assert!(ask(&on, "/x", None).unwrap_err().contains("the page is at /"));
    }
}

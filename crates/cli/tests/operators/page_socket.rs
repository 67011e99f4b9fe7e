//! The agent's page over a UNIX socket, with the clients that the documentation names: curl, and a browser's request
//! through ssh.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::metrics::{get, scrape};
use crate::support::{self, Running, Said, has_program, skip, wait_until};

/// An agent that only answers at a socket.
struct Stage {
    registry: tempfile::TempDir,
    scratch: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { registry: support::registry_directory(), scratch: support::disk_directory() };
        let socket = stage.socket();
        stage.configure(&format!("listen = \"unix:{}\"", socket.display()));
        stage
    }

    fn socket(&self) -> PathBuf {
        self.registry.path().join("page.sock")
    }

    fn configure(&self, settings: &str) {
        fs::write(self.configuration(), format!("[metrics]\npage = true\n{settings}\n")).unwrap();
    }

    fn configuration(&self) -> PathBuf {
        self.scratch.path().join("spillway.toml")
    }

    /// An agent with a registry of its own, so that several can run.
    fn agent(&self, registry: &str) -> Command {
        let mut command = support::spillway(&self.registry.path().join(registry));
        command.args(["agent", "--config"]).arg(self.configuration());
        command
    }

    fn start(&self, registry: &str) -> Running {
        let mut agent = Running::start(&mut self.agent(registry));
        agent.wait_until("an answer at the socket", || curl(&self.socket(), "/").status.success().then_some(()));
        agent
    }
}

fn curl(socket: &Path, path: &str) -> Said {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--unix-socket"]);
    support::run(command.arg(socket).arg(format!("http://localhost{path}")))
}

#[test]
fn curl_reads_the_page_over_a_socket_that_only_its_user_may_open() {
    if !has_program("curl") {
        return skip("curl");
    }
    let stage = Stage::new();
    let socket = stage.socket();
    let agent = stage.start("r");
    let file = fs::symlink_metadata(&socket).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.mode() & 0o777, 0o600);
    let page = curl(&socket, "/").done("the page").text();
    assert!(page.contains("<html") && page.contains("page.js"), "{page}");
    let figures = curl(&socket, "/page.json").done("the page's figures");
    assert!(serde_json::from_slice::<serde_json::Value>(&figures.output).unwrap()["programs"].is_array());
    assert!(curl(&socket, "/metrics").done("metrics").text().contains("spillway_machine_"));
    let foreign = support::run(
        Command::new("curl").args(["--silent", "--unix-socket"]).arg(&socket).arg("http://evil.example/page.json"),
    );
    assert!(foreign.text().contains("as localhost"), "a foreign name: {}", foreign.text());

    let status = support::run(support::spillway(&stage.registry.path().join("r")).arg("status")).done("status").text();
    let line = format!("curl --unix-socket {} http://localhost/metrics", socket.display());
    assert!(status.contains(&line), "{status}");

    // A second agent leaves a living one's socket alone.
    let refused = support::run(&mut stage.agent("other"));
    assert!(!refused.status.success() && refused.errors.contains("answers at"), "{}", refused.errors);
    assert!(curl(&socket, "/").status.success());

    // What a killed one left is replaced; one that ends takes its file with it.
    agent.signal("KILL");
    agent.end();
    assert!(socket.exists());
    let agent = stage.start("r");
    agent.signal("TERM");
    agent.end().done("the agent");
    assert!(!socket.exists());
}

#[test]
fn something_else_at_the_path_is_left_alone_and_a_group_may_be_admitted() {
    if !has_program("curl") {
        return skip("curl");
    }
    let stage = Stage::new();
    let socket = stage.socket();
    fs::write(&socket, "precious").unwrap();
    let refused = support::run(&mut stage.agent("r"));
    assert!(!refused.status.success() && refused.errors.contains("is not a socket"), "{}", refused.errors);
    assert_eq!(fs::read(&socket).unwrap(), b"precious");
    fs::remove_file(&socket).unwrap();

    let group = rustix::process::getegid().as_raw();
    stage.configure(&format!("listen = [\"127.0.0.1:0\", \"unix:{}\"]\ngroup = \"{group}\"", socket.display()));
    let agent = stage.start("r");
    let file = fs::metadata(&socket).unwrap();
    assert_eq!((file.mode() & 0o777, file.gid()), (0o660, group));
    let said = support::run(support::spillway(&stage.registry.path().join("r")).args(["status", "--json"]));
    let status: serde_json::Value = serde_json::from_slice(&said.done("status").output).unwrap();
    let report = &status["items"][0]["report"];
    assert_eq!(report["web_socket"].as_str(), socket.to_str());
    assert!(scrape(report["metrics"].as_str().unwrap()).contains("spillway_machine_"), "both ways: {report}");
    agent.signal("TERM");
    agent.end().done("the agent");
}

/// A server for ssh on loopback, for this user by a key made here.
struct SshServer {
    _server: Running,
    port: u16,
    home: tempfile::TempDir,
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl SshServer {
    fn start() -> Self {
        // On a path whose folders only root can write to, as sshd asks of keys.
        let (home, port) = (tempfile::tempdir().unwrap(), free_port());
        let file = |name: &str| home.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            support::run(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)])).done("ssh-keygen");
        }
        fs::copy(file("user.pub"), file("authorized")).unwrap();
        let settings = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPermitRootLogin prohibit-password\n",
            file("host"),
            file("authorized"),
        );
        fs::File::create(file("sshd_config")).unwrap().write_all(settings.as_bytes()).unwrap();
        let server = Running::start(Command::new("/usr/sbin/sshd").args(["-D", "-e", "-f", &file("sshd_config")]));
        Self { _server: server, port, home }
    }

    /// `ssh -L PORT:SOCKET`, with nothing of the user's own configuration.
    fn forward(&self, local_port: u16, socket: &Path) -> Running {
        let mut command = Command::new("ssh");
        command.args(["-F", "none", "-N", "-p", &self.port.to_string(), "-i"]).arg(self.home.path().join("user"));
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ExitOnForwardFailure=yes"] {
            command.args(["-o", option]);
        }
        command.args(["-o", "BatchMode=yes", "-L", &format!("{local_port}:{}", socket.display()), "127.0.0.1"]);
        Running::start(&mut command)
    }
}

#[test]
fn ssh_brings_the_socket_to_another_machines_browser() {
    for program in ["ssh", "ssh-keygen"] {
        if !has_program(program) {
            return skip(program);
        }
    }
    if !Path::new("/usr/sbin/sshd").exists() || !rustix::process::geteuid().is_root() {
        return skip("a server for ssh, as root");
    }
    // sshd gives up its rights there.
    fs::create_dir_all("/run/sshd").unwrap();
    let stage = Stage::new();
    let agent = stage.start("r");
    let (server, port) = (SshServer::start(), free_port());
    wait_until("the server for ssh", || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).ok());
    let mut forward = server.forward(port, &stage.socket());
    forward.wait_until("the forwarded port", || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    let page = get(&format!("http://127.0.0.1:{port}/"), "text/html");
    assert!(page.contains("page.js"), "{page}");
    drop(forward);
    agent.signal("TERM");
    agent.end().done("the agent");
}

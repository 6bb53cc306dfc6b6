//! The other side of each test: a loop that obeys one-line commands over a Unix socket with its own mapping of the
//! arena. A thread or another process runs it.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hoplite_store::{pass_fd, Arena, Followed, Mapping, Reader, Writer};
use hoplite_types::ObjectId;

/// Tells the test binary that it was started as a peer.
const PEER_VARIABLE: &str = "HOPLITE_STORE_PEER";

/// Longer than any machine needs; a missed wake-up then shows as `TimedOut`.
const LONG: Duration = Duration::from_secs(60);

pub fn pattern(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

pub fn numbered(number: u64) -> ObjectId {
    ObjectId(u128::from(number).to_be_bytes())
}

pub fn fill(writer: &mut Writer, to: u64) {
    let from = writer.watermark();
    for (i, byte) in writer.unpublished(from, to).iter_mut().enumerate() {
        *byte = pattern(from + i as u64);
    }
    writer.publish(to);
}

pub fn holds_pattern(reader: &Reader, to: u64) -> bool {
    reader.bytes(0, to).iter().enumerate().all(|(i, &byte)| byte == pattern(i as u64))
}

enum Host {
    Thread(Option<JoinHandle<()>>),
    Process(Child),
}

/// The near end of a peer.
pub struct Peer {
    host: Host,
    commands: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Peer {
    pub fn in_thread(arena: &Arena) -> Peer {
        let (near, far) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || obey(far));
        Self::attach(arena, near, Host::Thread(Some(thread)))
    }

    pub fn in_process(arena: &Arena) -> Peer {
        let (near, far) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["peer_process", "--exact", "--nocapture"])
            .env(PEER_VARIABLE, "1")
            .stdin(OwnedFd::from(far))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self::attach(arena, near, Host::Process(child))
    }

    fn attach(arena: &Arena, near: UnixStream, host: Host) -> Peer {
        let size = arena.bytes().to_le_bytes();
        assert_eq!(pass_fd::send_with_fd(&near, &size, arena.fd()).unwrap(), size.len());
        let answers = BufReader::new(near.try_clone().unwrap());
        Peer { host, commands: near, answers }
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// The next answer; empty when the peer is gone.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    pub fn expect(&mut self, command: &str, answer: &str) {
        assert_eq!(self.ask(command), answer, "to {command:?}");
    }

    /// Kills the process, wherever it is, and waits until it is dead.
    pub fn kill(mut self) {
        let Host::Process(child) = &mut self.host else { panic!("only a process can be killed") };
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The signal the process died of by itself.
    pub fn signal(mut self) -> Option<i32> {
        let Host::Process(child) = &mut self.host else { panic!("only a process dies of a signal") };
        child.wait().unwrap().signal()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.commands.shutdown(std::net::Shutdown::Both);
        match &mut self.host {
            Host::Thread(thread) => drop(thread.take().map(JoinHandle::join)),
            Host::Process(child) => drop(child.wait()),
        }
    }
}

/// The work of the test binary when it was started as a peer. Otherwise it does nothing.
pub fn run_if_peer() {
    if std::env::var_os(PEER_VARIABLE).is_some() {
        obey(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()));
    }
}

struct Side {
    mapping: Arc<Mapping>,
    writer: Option<Writer>,
    reader: Option<Reader>,
}

fn obey(socket: UnixStream) {
    let mut size = [0; 8];
    let (received, fd) = pass_fd::recv_with_fd(&socket, &mut size).unwrap();
    assert_eq!(received, size.len());
    let mapping = Mapping::attach(fd.unwrap(), u64::from_le_bytes(size)).unwrap();
    let mut side = Side { mapping, writer: None, reader: None };
    let mut answers = socket.try_clone().unwrap();
    for line in BufReader::new(socket).lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        let verb = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let answer = side.obey(verb, &numbers);
        if writeln!(answers, "{answer}").is_err() {
            return;
        }
    }
}

impl Side {
    fn obey(&mut self, verb: &str, numbers: &[u64]) -> String {
        match (verb, numbers) {
            ("write", &[offset, size]) => {
                self.writer = Some(self.mapping.writer(offset, size).unwrap());
                "ok".into()
            }
            ("read", &[offset, size]) => {
                self.reader = Some(self.mapping.reader(offset, size).unwrap());
                "ok".into()
            }
            ("fill", &[to]) => {
                fill(self.writer.as_mut().unwrap(), to);
                "ok".into()
            }
            ("half-fill", &[to]) => {
                let writer = self.writer.as_mut().unwrap();
                let from = writer.watermark();
                writer.unpublished(from, to).fill(0xee);
                "ok".into()
            }
            ("seal", []) => {
                self.writer.as_mut().unwrap().seal();
                "ok".into()
            }
            ("abort", []) => {
                self.writer.as_mut().unwrap().abort();
                "ok".into()
            }
            ("take-wanted", []) => self.writer.as_ref().unwrap().take_wanted().to_string(),
            ("watermark", []) => self.reader().watermark().to_string(),
            ("state", []) => format!("{:?}", self.reader().state()),
            ("check", &[to]) => holds_pattern(self.reader(), to).to_string(),
            ("follow", &[above]) => format!("{:?}", self.reader().follow(above, LONG)),
            ("removals", &[number]) => self.mapping.removals(numbered(number)).to_string(),
            ("chase", []) => self.chase(),
            ("scribble", []) => self.scribble(),
            other => panic!("unknown command {other:?}"),
        }
    }

    fn reader(&self) -> &Reader {
        self.reader.as_ref().unwrap()
    }

    /// Follows to the end, checking every byte as it comes.
    fn chase(&self) -> String {
        let reader = self.reader();
        let mut done = 0;
        loop {
            match reader.follow(done, LONG) {
                Followed::Advanced(to) => {
                    let fresh = reader.bytes(done, to).iter().enumerate();
                    for (i, &byte) in fresh {
                        if byte != pattern(done + i as u64) {
                            return format!("wrong byte at {}", done + i as u64);
                        }
                    }
                    done = to;
                }
                Followed::Interrupted => {}
                end => return format!("{end:?} after {done}"),
            }
        }
    }

    fn scribble(&self) -> String {
        let byte = self.reader().bytes(0, 1).as_ptr().cast_mut();
        // SAFETY: none: this is what the read-only mapping must refuse, killing the process.
        unsafe { byte.write_volatile(1) };
        "survived".into()
    }
}

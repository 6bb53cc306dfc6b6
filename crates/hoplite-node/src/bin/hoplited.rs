//! The daemon: one node of Hoplite.
//!
//! When it is ready it prints one line to stdout, `hoplited listening on ADDR socket PATH store BYTES`; everything
//! else goes to stderr. SIGTERM or SIGINT makes it leave; a second one ends it at once, with exit status 0.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use hoplite_node::{Daemon, Options};
use rustix::process::{getppid, set_parent_process_death_signal, setpriority_process, Signal};
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::mpsc;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// The first signal asks the daemon to leave, the second one to end at once.
const SIGNALS_MAX: usize = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    let filter = match EnvFilter::try_new(&options.log) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("hoplited: --log {:?}: {error}", options.log);
            return ExitCode::from(2);
        }
    };
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    if options.die_with_parent {
        let parent = getppid();
        set_parent_process_death_signal(Some(Signal::TERM))?;
        if getppid() != parent {
            return Err("the parent has ended already".into());
        }
    }
    if let Some(niceness) = options.niceness {
        // For this thread only; the others inherit it.
        if let Err(error) = setpriority_process(None, niceness) {
            info!("cannot run at niceness {niceness}: {error}");
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before a signal could leave anything behind.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let daemon = Daemon::start(options).await?;
        let ready = format!(
            "hoplited listening on {} socket {} store {}\n",
            daemon.id().addr,
            daemon.socket().display(),
            daemon.store_bytes()
        );
        let mut stdout = std::io::stdout();
        stdout.write_all(ready.as_bytes()).and_then(|()| stdout.flush())?;
        let (ask, stop) = mpsc::channel(SIGNALS_MAX);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                // Further signals have no more effect.
                let _ = ask.try_send(());
            }
        });
        // Run as a task, like those that read its sockets. Waking the future that the runtime blocks on costs a check
        // of all sockets each time.
        tokio::spawn(daemon.run(stop)).await?;
        Ok(())
    })
}

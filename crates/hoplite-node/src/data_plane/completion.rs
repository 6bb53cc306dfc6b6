//! Guarantees that every job ends in exactly one input for the core, even if it panics or is dropped.

use hoplite_core::io::Input;
use tokio::sync::mpsc;

/// Owned by a job. If it is dropped without [`Completion::conclude`] (the job panicked, was never claimed, or its
/// thread ended), it reports the job as broken.
#[derive(Debug)]
pub(super) struct Completion {
    inputs: mpsc::UnboundedSender<Input>,
    broken: Option<Input>,
}

impl Completion {
    pub(super) fn new(inputs: mpsc::UnboundedSender<Input>, broken: Input) -> Self {
        Completion { inputs, broken: Some(broken) }
    }

    pub(super) fn conclude(mut self, input: Input) {
        self.broken = Some(input);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(input) = self.broken.take() {
            // The receiver is gone when the daemon ends.
            let _ = self.inputs.send(input);
        }
    }
}

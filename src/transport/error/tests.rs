//! What errors of an exchange say of themselves.

use super::*;

#[test]
fn every_step_is_said_in_words() {
    for (step, words) in [
        (Step::Connect, "making a channel"),
        (Step::AskWhoItIs, "asking who the other end is"),
        (Step::Send, "sending"),
        (Step::Receive, "receiving"),
        (Step::Offer, "offering"),
        (Step::Fetch, "fetching"),
    ] {
        let error = TransportError::OutOfDescriptors { step };
        assert!(
            error.to_string().starts_with(&format!("{words}: out of file descriptors;")),
            "{error}"
        );
    }
}

#[test]
fn what_the_system_answers_is_told_apart() {
    let step = Step::Send;
    let system = |errno| TransportError::system(step, errno);
    for errno in [Number::MFILE, Number::NFILE] {
        assert_eq!(system(errno), TransportError::OutOfDescriptors { step });
    }
    for errno in [Number::PIPE, Number::CONNRESET, Number::NOTCONN] {
        assert_eq!(system(errno), TransportError::Gone { step, bytes: 0 });
    }
    assert_eq!(
        system(Number::NOBUFS),
        TransportError::System { step, errno: Errno::of(Number::NOBUFS) }
    );
}

#[test]
fn time_out_is_told_of_the_whole_message() {
    // A peer that sends a byte now and then does something, and not enough.
    let error = TransportError::TimedOut { step: Step::Receive, patience: Duration::from_secs(3) };
    assert_eq!(error.to_string(), "receiving: the other end did not finish within 3s");
}

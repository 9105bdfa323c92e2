//! Receives arbitrary messages from a socket. A message is any bytes, sent in two parts, with up to five
//! descriptors.
#![no_main]

use hsa_vmm::ErrorKind;
use hsa_vmm::transport::{Channel, Description, Ticket};
use libfuzzer_sys::fuzz_target;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, bytes) = input;
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(ticket) = text.parse::<Ticket>()
    {
        assert_eq!(ticket.to_string(), text);
    }
    if let Ok(description) = Description::decode(bytes) {
        assert_eq!(description.encode().as_deref(), Ok(bytes));
    }
    // A message needs at least one byte. If `choice % 8` is 6 or 7, test only the decoding above, because sockets are
    // slow.
    if bytes.is_empty() || choice % 8 > 5 {
        return;
    }
    let (mut sender, receiver) = UnixStream::pair().unwrap();
    let count = usize::from(choice % 8);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let attached = vec![receiver.as_fd(); count];
    if count > 0 {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&attached)));
    }
    let (first, rest) = bytes.split_at(1 + usize::from(choice) % bytes.len());
    sendmsg(&sender, &[IoSlice::new(first)], &mut ancillary, SendFlags::empty()).unwrap();
    sender.write_all(rest).unwrap();
    drop(sender);
    let channel = Channel::over(receiver).with_timeout(Duration::from_secs(5));
    match channel.receive_descriptor() {
        Ok((_, description)) => {
            assert_eq!(count, 1);
            // Later bytes belong to the next message.
            assert!(bytes.starts_with(&description.encode().unwrap()));
        }
        // The sender has disconnected, so no call waits until the timeout.
        Err(error) => assert!(!matches!(error.kind(), ErrorKind::TimedOut(_)), "{error}"),
    }
});

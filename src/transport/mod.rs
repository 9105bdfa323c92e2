//! Shared memory sent to another process, with what describes it.
//!
//! A shareable handle is a file descriptor, and says nothing but its size. Here it travels with a
//! [`Description`]: what the sender calls it, how large it is, whose memory. There are two ways.
//!
//! * [`Channel`]: over a Unix socket (`SCM_RIGHTS`). Both ends must be there.
//! * [`Offer`] and [`Ticket`]: the sender keeps the descriptor and hands out a line of text, by
//!   whatever means there are; the receiver fetches the descriptor from the sender's process
//!   (`pidfd_getfd`). Nothing listens, so nothing can be asked by a stranger.
//!
//! Neither trusts what it gets. The other end must be a process of the same user
//! unless [`Trust`] says otherwise; a message that is malformed, cut off, too long, or brings any
//! number of descriptors but one is refused, and everything it brought is closed; a channel that has
//! received more than one, or part of a message, is shut down; the size that was described must be the
//! memory's; and nothing waits longer than its patience.
//!
//! Both work for processes of other namespaces as far as they can: a channel between any two, for it
//! needs no number of a process; a ticket within one PID namespace, and it says so elsewhere. Of a
//! user who has no number in this process's user namespace nothing is known, so only
//! [`Trust::Anyone`] lets one in.
//!
//! AMD's own IPC answers anyone who connects to an abstract socket named after the process. Nothing
//! here has a name.

mod channel;
mod description;
mod error;
mod ticket;

pub use crate::trust::{Trust, UntrustedUser};
pub use channel::Channel;
pub use description::{Description, Malformed};
pub use error::{Step, TransportError};
pub use ticket::{Offer, Ticket, UnknownTicket};

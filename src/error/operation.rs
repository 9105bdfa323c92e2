//! The operations that return errors.

use super::{Argument, Error, ErrorKind, Problem, Value};
use derive_more::Display;

macro_rules! operations {
    ($($variant:ident: $name:literal, $phrase:literal;)+) => {
        /// The operation that failed: in most cases, a method of this library.
        ///
        /// Displayed as the operation's name, such as `address_reserve`.
        ///
        /// ```
        /// use hsa_vmm::error::Operation;
        ///
        /// assert_eq!(Operation::AddressReserve.to_string(), "address_reserve");
        /// ```
        #[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
        #[display("{}", self.name())]
        #[non_exhaustive]
        pub enum Operation {
            $(#[doc = concat!("To ", $phrase, " (`", $name, "`).")] $variant,)+
        }

        impl Operation {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the operation's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns a description of the operation that can follow "cannot".
            pub(super) const fn phrase(self) -> &'static str {
                match self { $(Self::$variant => $phrase,)+ }
            }
        }
    };
}

operations! {
    Load: "load", "load an HSA runtime";
    Start: "start", "start the HSA runtime";
    Discover: "discover", "discover the runtime's agents";
    Open: "open", "open virtual memory management";
    OpenQueue: "open_queue", "open a retire queue";
    OpenIpc: "open_ipc", "open IPC";
    AddressReserve: "address_reserve", "reserve addresses";
    AddressFree: "address_free", "free addresses";
    Create: "create", "create physical memory";
    Release: "release", "release a handle";
    Map: "map", "map";
    Unmap: "unmap", "unmap";
    SetAccess: "set_access", "set access";
    GetAccess: "get_access", "get access";
    Revoke: "revoke", "revoke access";
    WithAccess: "with_access", "access a mapping";
    CheckMapped: "check_mapped", "check a mapping";
    AllocationGranularity: "allocation_granularity", "get the granularity";
    AllocationProperties: "allocation_properties", "get properties";
    ExportToShareableHandle: "export_to_shareable_handle", "export a shareable handle";
    ImportFromShareableHandle: "import_from_shareable_handle", "import a shareable handle";
    ExportAddressRange: "export_address_range", "export a range of addresses";
    RetainAllocationHandle: "retain_allocation_handle", "retain a handle";
    MapArrayAsync: "map_array_async", "map a sparse array";
    Name: "name", "set a name";
    Retire: "retire", "retire memory";
    Exchange: "exchange", "exchange memory";
    Relocate: "relocate", "relocate a mapping";
    Read: "read", "read";
    Write: "write", "write";
    Copy: "copy", "copy";
    CopyToHost: "copy_to_host", "copy to the host";
    CopyFromHost: "copy_from_host", "copy from the host";
    Fill: "fill", "fill";
    Allocate: "allocate", "allocate pool memory";
    Allow: "allow", "allow access to pool memory";
    Free: "free", "free pool memory";
    GetMemHandle: "get_mem_handle", "get an IPC handle";
    OpenMemHandle: "open_mem_handle", "open an IPC handle";
    CloseMemHandle: "close_mem_handle", "close IPC memory";
    AreaCreate: "area_create", "create an area";
    Mmap: "mmap", "map an area";
    Munmap: "munmap", "unmap an area";
    Resize: "resize", "resize a buffer";
    MapPages: "map_pages", "map pages";
    UnmapPages: "unmap_pages", "unmap pages";
    MovePages: "move_pages", "move pages";
    SharePages: "share_pages", "share pages";
    GetPage: "get_page", "look up a page";
    Pause: "pause", "pause a buffer";
    Resume: "resume", "resume a buffer";
    Connect: "connect", "connect";
    Send: "send", "send memory";
    Receive: "receive", "receive memory";
    Offer: "offer", "offer memory";
    Fetch: "fetch", "fetch memory";
}

impl Operation {
    /// Calls `act`, and adds this operation to its error.
    pub(crate) fn run<T>(self, act: impl FnOnce() -> Result<T, ErrorKind>) -> Result<T, Error> {
        act().map_err(|kind| Error::new(self, kind))
    }

    /// Checks a `flags` argument of HIP's calls, for which only 0 is valid.
    ///
    /// ```
    /// use hsa_vmm::error::Operation;
    ///
    /// assert!(Operation::Create.check_flags(0).is_ok());
    /// assert!(Operation::Create.check_flags(1).is_err());
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for any other flags.
    pub fn check_flags(self, flags: u64) -> Result<(), Error> {
        let problem = Problem::UndefinedFlags(0);
        let invalid = || Err(ErrorKind::invalid(Argument::Flags, Value::Bytes(flags), problem));
        self.run(|| if flags == 0 { Ok(()) } else { invalid() })
    }
}

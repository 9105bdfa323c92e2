//! Structs of the kernel's interfaces: their bytes, and their fields for the log.

/// A struct of the kernel's interface.
///
/// # Safety
///
/// The type consists of integers without padding, so every bit pattern is a valid value.
pub(crate) unsafe trait Pod: Copy + Send + 'static {
    /// Passes the name and value of each field to `visit`, for the log.
    fn fields(&self, visit: &mut dyn FnMut(&'static str, String));

    /// Returns the name of the call for fault plans. If one call has several operations, the name contains the
    /// operation: `GEM_VA.MAP`. `name` is the name without an operation.
    fn call_name(&self, name: &'static str) -> &'static str {
        name
    }

    fn zero() -> Self {
        // SAFETY: all zeros is a value, as every bit pattern is.
        unsafe { std::mem::zeroed() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: there is no padding, so all of the value's bytes are initialised.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: there is no padding, and every bit pattern that a caller writes is a value.
        unsafe { std::slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: an integer has no padding, and every bit pattern is a value.
unsafe impl Pod for u32 {
    fn fields(&self, visit: &mut dyn FnMut(&'static str, String)) {
        visit("value", self.to_string());
    }
}

// SAFETY: an integer has no padding, and every bit pattern is a value.
unsafe impl Pod for u64 {
    fn fields(&self, visit: &mut dyn FnMut(&'static str, String)) {
        visit("value", format!("{self:#x}"));
    }
}

/// The type of a struct's field, which can be formatted for the log.
pub(crate) trait LogField {
    fn format(&self) -> String;
}

impl LogField for u32 {
    fn format(&self) -> String {
        self.to_string()
    }
}

impl LogField for i32 {
    fn format(&self) -> String {
        self.to_string()
    }
}

impl LogField for u64 {
    fn format(&self) -> String {
        format!("{self:#x}")
    }
}

impl<T: std::fmt::Debug, const N: usize> LogField for [T; N] {
    fn format(&self) -> String {
        format!("{self:?}")
    }
}

/// Formats the names of the set bits, and the unnamed bits as a number.
pub(crate) fn format_bits(value: u32, names: &[(u32, &str)]) -> String {
    let named = names.iter().filter(|(bit, _)| value & bit != 0);
    let rest = names.iter().fold(value, |value, (bit, _)| value & !bit);
    let mut texts: Vec<String> = named.map(|(_, name)| (*name).to_owned()).collect();
    if rest != 0 || texts.is_empty() {
        texts.push(format!("{rest:#x}"));
    }
    texts.join("|")
}

/// Defines structs of integers, none of which has padding, and checks the size of each. A field
/// can name the function that formats it for the log: `flags: u32 as flags::format`. `named` is followed by the
/// function that returns the call's name together with its operation.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident: $size:literal $(named $call_name:path)? {
        $($field:ident: $kind:ty $(as $format:path)?),* $(,)?
    })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub(crate) struct $name { $(pub(crate) $field: $kind),* }
            const _: () = {
                assert!(size_of::<$name>() == $size);
                assert!(0 $(+ size_of::<$kind>())* == $size);
            };
            // SAFETY: integers only, and the sizes add up, so there is no padding.
            unsafe impl $crate::abi::Pod for $name {
                fn fields(&self, visit: &mut dyn FnMut(&'static str, String)) {
                    $(visit(stringify!($field), $crate::abi::format_field!(self.$field $(, $format)?));)*
                }

                $(fn call_name(&self, _: &'static str) -> &'static str {
                    $call_name(self)
                })?
            }
        )*
    };
}
pub(crate) use structs;

/// Formats a field for the log.
macro_rules! format_field {
    ($value:expr) => {
        $crate::abi::LogField::format(&$value)
    };
    ($value:expr, $format:path) => {
        $format($value)
    };
}
pub(crate) use format_field;

/// Formats flags of `open`, which some calls take for a new descriptor.
pub(crate) fn format_open_flags(flags: u32) -> String {
    format_bits(flags, &[(libc::O_CLOEXEC as u32, "CLOEXEC"), (libc::O_RDWR as u32, "RDWR")])
}

//! Identifies a runtime by its exports, build and extension together.

use core::ffi::CStr;
use core::fmt;
use core::ops::RangeInclusive;
use hsa_sys::printable;

/// The implementation of a runtime ([`RuntimeInfo::implementation`](super::RuntimeInfo::implementation)).
///
/// ```
/// # use hsa_vmm::Runtime;
/// # use hsa_vmm::runtime::Implementation;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// match &runtime.info().implementation {
///     Implementation::Unknown { reasons, .. } => println!("unknown runtime: {}", reasons.join("; ")),
///     known => println!("{known}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Implementation {
    /// AMD's ROCr: the HSA runtime of ROCm's releases, in C++.
    #[non_exhaustive]
    Rocr {
        /// The minor version of the library, such as 15 in `libhsa-runtime64.so.1.15.0`.
        library: u16,
        /// The releases of ROCm with this library, such as `6.2 and 6.3`, if known.
        release: Option<&'static str>,
    },
    /// AMD's `libhsa` on `rocddi`: an HSA runtime in Rust (rocm-systems#12228).
    Rocddi,
    /// The simulation of this project. It behaves like a release of ROCr or like `libhsa` on `rocddi`.
    Simulation,
    /// Another implementation, or a runtime whose properties contradict each other.
    #[non_exhaustive]
    Unknown {
        /// Why the runtime was not identified.
        reasons: Vec<String>,
    },
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rocr { library, release: Some(release) } => {
                write!(f, "ROCr 1.{library} (ROCm {release})")
            }
            Self::Rocr { library, release: None } => write!(f, "ROCr 1.{library}"),
            Self::Rocddi => f.write_str("libhsa on rocddi"),
            Self::Simulation => f.write_str("simulation"),
            Self::Unknown { reasons } => write!(f, "unknown ({})", printable(&reasons.join("; "))),
        }
    }
}

/// The properties by which a runtime is identified: what it reports and what it exports.
pub(super) struct Evidence<'a> {
    /// The name of the library file; empty for the simulation.
    pub file: &'a str,
    /// The build that the runtime reports; empty if it reports none.
    pub build: &'a str,
    /// The version of AMD's extension.
    pub extension: (u16, u16),
    /// Whether the library's symbols have the version `ROCR_1`.
    pub has_rocr_symbol_version: bool,
    /// Returns whether the library exports a symbol.
    pub exports: &'a dyn Fn(&CStr) -> bool,
}

/// Functions of AMD's extension, and the minor version of the extension in which ROCr added each function.
const FUNCTIONS: [(&CStr, u16); 3] = [
    (c"hsa_amd_vmem_address_reserve_align", 6),
    (c"hsa_amd_portable_export_dmabuf_v2", 9),
    (c"hsa_amd_vmem_export_fabric_handle", 16),
];

/// Returns the releases of ROCm that contain version 1.`library` of ROCr's library, if known. Sources: `get_version` in
/// ROCr's CMakeLists.txt (tags rocm-6.0.0 to rocm-6.2.4), and the file names of packages (6.3.3, 6.4.3, 7.2.4).
fn release(library: u16) -> Option<&'static str> {
    match library {
        12 => Some("6.0"),
        13 => Some("6.1"),
        14 => Some("6.2 and 6.3"),
        15 => Some("6.4"),
        18 => Some("7"),
        _ => None,
    }
}

/// Returns the minor versions of AMD's extension that version 1.`library` of ROCr's library can report. Includes the
/// versions that only development builds report.
fn extensions(library: u16) -> RangeInclusive<u16> {
    match library {
        ..=12 => 0..=4,
        13 => 4..=5,
        14 => 4..=7,
        15 => 6..=9,
        16..=17 => 7..=15,
        18 => 9..=20,
        19.. => 12..=u16::MAX,
    }
}

/// Returns the minor version of ROCr's library. `build` is the build that the library reports, such as
/// `"1.15.0-local-build-unknown"`, or the end of the library's file name.
fn rocr_library(build: &str) -> Option<u16> {
    let numbers = build.trim_matches('"').strip_prefix("1.")?;
    let (minor, rest) = numbers.split_once('.')?;
    rest.starts_with(|first: char| first.is_ascii_digit()).then_some(minor)?.parse().ok()
}

pub(super) fn identify(evidence: &Evidence<'_>) -> Implementation {
    let Evidence { file, build, extension, has_rocr_symbol_version, exports } = *evidence;
    if build.starts_with("hsa-sim ") {
        return Implementation::Simulation;
    }
    let mut reasons = Vec::new();
    if !has_rocr_symbol_version {
        reasons.push("hsa_init has no symbol version ROCR_1".to_owned());
    }
    for (function, since) in FUNCTIONS {
        if extension >= (1, since) && !exports(function) {
            let ((major, minor), function) = (extension, function.to_string_lossy());
            reasons.push(format!(
                "extension {major}.{minor}, but no {function}, which ROCr has since 1.{since}"
            ));
        }
    }
    // Unlike rocddi, ROCr reports its build, does not export the functions of its loader extension, and exports the
    // debugger's symbol.
    let exports_loader = exports(c"hsa_ven_amd_loader_query_host_address");
    if build.is_empty() && exports_loader && reasons.is_empty() && !exports(c"_amdgpu_r_debug") {
        return Implementation::Rocddi;
    }
    match rocr_library(build) {
        None if build.is_empty() => reasons.push("no build is reported".to_owned()),
        None => reasons.push(format!("the build `{build}` is not that of a known runtime")),
        Some(library) => {
            let file_library =
                file.split_once(".so.").and_then(|(_, version)| rocr_library(version));
            if file_library.is_some_and(|file_library| file_library != library) {
                reasons.push(format!("build `{build}`, but the file is `{file}`"));
            }
            let possible_extensions = extensions(library);
            // An extension with a major version above 1 is newer than every known release.
            let minor = if extension.0 > 1 { u16::MAX } else { extension.1 };
            if !possible_extensions.contains(&minor) {
                let (major, minor) = extension;
                reasons.push(format!(
                    "build `{build}`, which does not have extension {major}.{minor}"
                ));
            }
            if reasons.is_empty() {
                return Implementation::Rocr { library, release: release(library) };
            }
        }
    }
    Implementation::Unknown { reasons }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[&CStr] = &[
        c"hsa_amd_vmem_address_reserve_align",
        c"hsa_amd_portable_export_dmabuf_v2",
        c"hsa_amd_vmem_export_fabric_handle",
    ];
    const ROCDDI: &[&CStr] = &[
        c"hsa_amd_vmem_address_reserve_align",
        c"hsa_amd_portable_export_dmabuf_v2",
        c"hsa_amd_vmem_export_fabric_handle",
        c"hsa_ven_amd_loader_query_host_address",
    ];

    fn identify(build: &str, minor: u16, exported: &[&CStr]) -> Implementation {
        identify_versioned(build, (1, minor), exported, true)
    }

    fn identify_versioned(
        build: &str,
        extension: (u16, u16),
        exported: &[&CStr],
        has_rocr_symbol_version: bool,
    ) -> Implementation {
        identify_file("libhsa-runtime64.so.1", build, extension, exported, has_rocr_symbol_version)
    }

    fn identify_file(
        file: &str,
        build: &str,
        extension: (u16, u16),
        exported: &[&CStr],
        has_rocr_symbol_version: bool,
    ) -> Implementation {
        let exports = |name: &CStr| exported.contains(&name);
        super::identify(&Evidence {
            file,
            build,
            extension,
            has_rocr_symbol_version,
            exports: &exports,
        })
    }

    fn rocr(library: u16, release: Option<&'static str>) -> Implementation {
        Implementation::Rocr { library, release }
    }

    #[test]
    fn releases_are_identified() {
        for (build, minor, exported, expected) in [
            ("\"1.13.0-local-build-unknown\"", 4, &ALL[..0], rocr(13, Some("6.1"))),
            ("1.14.0.60304-76~22.04-0", 6, &ALL[..1], rocr(14, Some("6.2 and 6.3"))),
            ("\"1.15.0-local-build-unknown\"", 7, &ALL[..1], rocr(15, Some("6.4"))),
            ("\"1.18.0-local-build-unknown\"", 15, &ALL[..2], rocr(18, Some("7"))),
            ("\"1.18.0-0-a1b2c3\"", 20, ALL, rocr(18, Some("7"))),
            ("\"1.21.0-0-a1b2c3\"", 25, ALL, rocr(21, None)),
            ("", 33, ROCDDI, Implementation::Rocddi),
            ("hsa-sim 0.1.0", 15, ALL, Implementation::Simulation),
        ] {
            assert_eq!(identify(build, minor, exported), expected, "{build}");
        }
        assert_eq!(rocr(15, Some("6.4")).to_string(), "ROCr 1.15 (ROCm 6.4)");
        assert_eq!(rocr(21, None).to_string(), "ROCr 1.21");
    }

    #[test]
    fn contradictions_are_unknown_and_listed() {
        let reasons = |implementation: Implementation| match implementation {
            Implementation::Unknown { reasons } => reasons.join("; "),
            known => panic!("{known}"),
        };
        // The build of ROCm 6.1 with the extension of ROCm 10.
        let text = reasons(identify("\"1.13.0-local-build-unknown\"", 22, &[]));
        assert!(text.contains("hsa_amd_vmem_address_reserve_align"), "{text}");
        assert!(text.contains("1.13.0") && text.contains("extension 1.22"), "{text}");
        // The build of ROCm 7.2 with the extension of ROCm 6.1.
        let text = reasons(identify("\"1.18.0-local-build-unknown\"", 4, ALL));
        assert!(text.contains("does not have extension 1.4"), "{text}");
        let text = reasons(identify("\"1.18.0-local-build-unknown\"", 20, &ALL[..2]));
        assert!(text.contains("hsa_amd_vmem_export_fabric_handle"), "{text}");
        assert!(reasons(identify("", 15, ALL)).contains("no build is reported"));
        assert!(reasons(identify("another runtime", 15, ALL)).contains("`another runtime`"));
        let text = reasons(identify_versioned("\"1.18.0-0-0\"", (1, 15), ALL, false));
        assert!(text.contains("ROCR_1"), "{text}");
        let newest = identify_versioned("\"1.30.0-0-0\"", (2, 0), ALL, true);
        assert_eq!(newest, rocr(30, None));
        assert!(reasons(identify_versioned("\"1.13.0-0-0\"", (2, 0), ALL, true)).contains("2.0"));
    }

    #[test]
    fn file_of_another_release_is_unknown() {
        let identify = |file: &str| {
            identify_file(file, "\"1.15.0-local-build-unknown\"", (1, 7), &ALL[..1], true)
        };
        for file in ["libhsa-runtime64.so.1.15.0", "libhsa-runtime64.so.1.15.60403", "renamed.so"] {
            assert_eq!(identify(file), rocr(15, Some("6.4")), "{file}");
        }
        let Implementation::Unknown { reasons } = identify("libhsa-runtime64.so.1.13.0") else {
            panic!("the file of another release")
        };
        assert_eq!(
            reasons,
            [
                "build `\"1.15.0-local-build-unknown\"`, but the file is `libhsa-runtime64.so.1.13.0`"
            ]
        );
    }

    #[test]
    fn builds_of_rocr_have_three_numbers() {
        for build in ["1.15", "1.x.0-y", "2.15.0-local", "", "\"", "1..0", "1.99999.0-a", "v1.15.0"]
        {
            assert_eq!(rocr_library(build), None, "{build}");
        }
        assert_eq!(rocr_library("1.12.0-local-build-unknown"), Some(12));
    }
}

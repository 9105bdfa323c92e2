//! With the feature `bindgen`, generates bindings of the headers in `include`. Without the feature, does nothing.

fn main() {
    println!("cargo:rerun-if-changed=include");
    #[cfg(feature = "bindgen")]
    {
        generate("include/hsa_abi.h", "(hsa|HSA|MEMORY_TYPE)_.*", "bindings.rs");
        generate("include/driver_abi.h", "(kfd|KFD|amdgpu|AMDGPU)_.*", "driver.rs");
    }
}

#[cfg(feature = "bindgen")]
fn generate(header: &str, items: &str, file: &str) {
    let bindings = bindgen::Builder::default()
        .header(header)
        .allowlist_item(items)
        .blocklist_item("HSA_VMM_HSA_ABI_H")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(false)
        .derive_eq(true)
        .derive_hash(true)
        .size_t_is_usize(true)
        .use_core()
        .layout_tests(true)
        .merge_extern_blocks(true)
        .disable_header_comment()
        .formatter(bindgen::Formatter::None)
        .generate()
        .unwrap_or_else(|error| panic!("libclang could not read {header}: {error}"));
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let file = out.join(file);
    bindings.write_to_file(&file).expect("OUT_DIR is writable");
    // Formats the generated file like the checked-in one, with the toolchain's rustfmt.
    let rustfmt = std::env::var_os("RUSTFMT").unwrap_or_else(|| "rustfmt".into());
    let status = std::process::Command::new(rustfmt)
        .args(["--edition", "2024", "--config", "max_width=100"])
        .arg(&file)
        .status()
        .expect("rustfmt is part of the toolchain");
    assert!(status.success(), "rustfmt failed on the generated bindings");
}

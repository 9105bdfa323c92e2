//! With the feature `bindgen`, generates bindings of `include/hsa_abi.h`. Without it, does nothing.

fn main() {
    println!("cargo:rerun-if-changed=include/hsa_abi.h");
    #[cfg(feature = "bindgen")]
    generate();
}

#[cfg(feature = "bindgen")]
fn generate() {
    let bindings = bindgen::Builder::default()
        .header("include/hsa_abi.h")
        .allowlist_item("(hsa|HSA|MEMORY_TYPE)_.*")
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
        .expect("libclang could not read include/hsa_abi.h");
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let file = out.join("bindings.rs");
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

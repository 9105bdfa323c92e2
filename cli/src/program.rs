//! Replaces this process by other programs, and formats command lines that repeat a run.

use crate::{planned_faults, standard_output};
use anyhow::bail;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The environment variable with the `hsa-vmm` subcommand and options that started this program.
pub const OUTER_COMMAND: &str = "HSA_VMM_UNDER";

/// The environment variables of AMD's runtime that a command must set to reproduce a run.
const RUNTIME_VARIABLES: &[&str] = &[
    "HIP_VISIBLE_DEVICES",
    "HSAKMT_DEBUG_LEVEL",
    "HSA_CU_MASK",
    "HSA_DISABLE_FRAGMENT_ALLOCATOR",
    "HSA_ENABLE_DEBUG",
    "HSA_ENABLE_INTERRUPT",
    "HSA_ENABLE_MWAITX",
    "HSA_ENABLE_PEER_SDMA",
    "HSA_ENABLE_SDMA",
    "HSA_ENABLE_SDMA_COPY_SIZE_OVERRIDE",
    "HSA_ENABLE_SDMA_GANG",
    "HSA_FORCE_FINE_GRAIN_PCIE",
    "HSA_MAX_QUEUES",
    "HSA_NO_SCRATCH_RECLAIM",
    "HSA_OVERRIDE_GFX_VERSION",
    "HSA_REV_COPY_DIR",
    "HSA_SCRATCH_MEM",
    "HSA_SDMA_WAIT_IDLE",
    "HSA_SVM_GUARD_PAGES",
    "HSA_TOOLS_LIB",
    "HSA_USE_SVM",
    "HSA_XNACK",
    "ROCM_PATH",
    "ROCR_VISIBLE_DEVICES",
];

/// Returns those of [`RUNTIME_VARIABLES`] that are set, with their values. An empty value can differ from an unset
/// variable: an empty `ROCR_VISIBLE_DEVICES` hides all GPUs.
pub fn set_runtime_variables() -> impl Iterator<Item = (String, String)> {
    RUNTIME_VARIABLES.iter().filter_map(|name| {
        let value = env::var_os(name)?.to_string_lossy().into_owned();
        Some(((*name).to_owned(), value))
    })
}

/// Splits a command line into the program and its arguments.
pub fn split_command_line(line: &[OsString]) -> anyhow::Result<(&OsStr, &[OsString])> {
    match line.split_first() {
        Some((program, arguments)) => Ok((program, arguments)),
        None => bail!("no program is given"),
    }
}

/// Replaces this process by a program. The program then receives the signals of this process and determines its
/// exit status. Returns only on failure.
pub fn become_program(mut command: Command, program: &OsStr) -> anyhow::Result<crate::Exit> {
    standard_output::keep_closed(&mut command);
    let source = command.exec();
    Err(NotStarted::new(program, source).into())
}

/// A program that cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {program}: {source}")]
pub struct NotStarted {
    program: String,
    source: io::Error,
}

impl NotStarted {
    pub fn new(program: &OsStr, source: io::Error) -> Self {
        Self { program: program.display().to_string(), source }
    }

    /// Returns the exit status with which a shell reports that a program cannot be started.
    pub fn exit_status(&self) -> u8 {
        match self.source.kind() {
            io::ErrorKind::NotFound => 127,
            _ => 126,
        }
    }
}

/// Returns a command that starts this program again as a worker. The worker records which planned faults
/// happen.
pub fn worker_command() -> io::Result<Command> {
    let mut command = hsa_rocr::restart_command()?;
    planned_faults::enable_recording(&mut command);
    Ok(command)
}

/// Sets the variable [`OUTER_COMMAND`] of the program that `command` starts: `words` are the `hsa-vmm` subcommand and
/// options that start the program. If this process has the variable, too, puts its value before `words`.
pub fn set_outer_command(command: &mut Command, words: &[String]) {
    let words = quoted(words);
    command.env(
        OUTER_COMMAND,
        match env::var(OUTER_COMMAND) {
            Ok(outer) => format!("{outer} -- {} {words}", program_name()),
            Err(_) => words,
        },
    );
}

/// Returns the command line of this process, after the command line of the `emulate`, `vm` or `rocr run` that started
/// the process.
pub fn command_line() -> String {
    let arguments = env::args_os().skip(1);
    with_outer_command(arguments.map(|word| word.to_string_lossy().into_owned()))
}

/// Removes the folder of this program from a command line, for reports that are read on other machines.
pub fn without_program_folder(line: &str) -> String {
    replace_folder(line, &unquoted_program_name())
}

/// Replaces the words of a command line that are the quoted path `program` by its file name.
fn replace_folder(line: &str, program: &str) -> String {
    let Some(name) = Path::new(program).file_name() else { return line.to_owned() };
    let [long, short] = [program.to_owned(), name.to_string_lossy().into_owned()]
        .map(|word| format!(" {} ", quoted(&[word])));
    let line = format!(" {line} ").replace(&long, &short);
    line[1..line.len() - 1].to_owned()
}

/// Returns a command line that runs this program with other arguments in the same environment: the runtime's variables,
/// and the same `emulate`, `vm` or `rocr run`.
pub fn reproduce_command(words: impl IntoIterator<Item = String>) -> String {
    variables_to_repeat() + &with_outer_command(words)
}

/// Returns the variables that change the runtime or the driver, for the start of a command line: `HSA_ENABLE_SDMA=0 `.
fn variables_to_repeat() -> String {
    let outer = env::var(OUTER_COMMAND).unwrap_or_default();
    let outer_has = |options: &[&str]| options.iter().any(|option| outer.contains(option));
    let mut names = vec!["HSA_KFD"];
    if !outer_has(&["--fault"]) {
        names.push("HSA_KFD_FAULTS");
    }
    if outer.is_empty() && planned_faults::is_driver_emulated() {
        names.push("LD_PRELOAD");
    }
    let variable = |name: &&str| {
        let value = env::var(name).ok()?;
        let value = if *name == "HSA_KFD" { without_options(&value, &outer) } else { value };
        if value.is_empty() || is_set_by_vm(name, &value) {
            return None;
        }
        Some(((*name).to_owned(), value))
    };
    let variables = set_runtime_variables().chain(names.iter().filter_map(variable));
    variables.map(|(name, value)| format!("{name}={} ", quoted(&[value]))).collect()
}

/// Returns whether `vm` has set this environment variable, for the object that it preloads.
pub fn is_set_by_vm(name: &str, value: &str) -> bool {
    (name, value) == ("HSA_KFD", "real") && env::var_os(OUTER_COMMAND).is_some()
}

/// Removes the settings that the options of `emulate` in `outer` make from `value`, a value of `HSA_KFD`.
fn without_options(value: &str, outer: &str) -> String {
    let is_option = |setting: &&str| {
        let option = match setting.split('=').next() {
            Some("gpus") => "--gpus",
            Some("profile") => "--machine",
            Some("vram") => "--vram",
            _ => return false,
        };
        outer.contains(option)
    };
    let settings: Vec<_> = value.split(',').filter(|setting| !is_option(setting)).collect();
    settings.join(",")
}

/// Returns the command line of another program in the same environment, as [`reproduce_command`] does.
pub fn in_same_environment(line: &str) -> String {
    let variables = variables_to_repeat();
    match env::var(OUTER_COMMAND) {
        Ok(outer) => format!("{variables}{} {outer} -- {line}", program_name()),
        Err(_) => variables + line,
    }
}

/// Returns a command line that runs the program of `command` with a tool, such as `gdb --args`. The tool runs where the
/// program runs, for example inside of `emulate`, `vm` or `rocr run`.
pub fn with_tool(tool: &str, command: &str) -> String {
    if let Some((outer, program)) = command.rsplit_once(" -- ") {
        return format!("{outer} -- {tool} {program}");
    }
    let has_variables = command.split(' ').next().is_some_and(|word| word.contains('='));
    let env = if has_variables { "env " } else { "" };
    format!("{tool} {env}{command}")
}

/// Returns the command line of this program with these arguments, started by the same `emulate`, `vm` or `rocr run` as
/// this process.
fn with_outer_command(words: impl IntoIterator<Item = String>) -> String {
    let words: Vec<_> = words.into_iter().collect();
    let (name, words) = (program_name(), quoted(&words));
    let line = match env::var(OUTER_COMMAND) {
        Ok(outer) => format!("{name} {outer} -- {name} {words}"),
        Err(_) => format!("{name} {words}"),
    };
    line.trim_end().to_owned()
}

/// Returns this program's name as a user types it in a shell.
fn program_name() -> String {
    quoted(&[unquoted_program_name()])
}

/// Returns the path of this program as it was typed, without the folder if a search in `PATH` finds the program.
fn unquoted_program_name() -> String {
    let typed = env::args_os().next().unwrap_or_else(|| "hsa-vmm".into());
    let typed = typed.to_string_lossy().into_owned();
    let short = Path::new(&typed).file_name().map(|name| name.to_string_lossy().into_owned());
    let found = short.as_ref().and_then(|name| {
        let folders = env::var_os("PATH")?;
        env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.is_file())
    });
    let canonical = |path: &Path| path.canonicalize().ok();
    match (short, found) {
        (Some(short), Some(found)) if canonical(&found) == canonical(Path::new(&typed)) => short,
        _ => typed,
    }
}

/// Quotes words for a shell and joins them.
pub fn quoted(words: &[String]) -> String {
    let home = env::var("HOME").unwrap_or_default();
    words.iter().map(|word| quoted_word(word, &home)).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell. Does not quote the home folder at the start of the word, because reports replace that
/// folder by `~`, and a shell does not expand a quoted `~`.
fn quoted_word(word: &str, home: &str) -> String {
    // Quoting fails only for a NUL, which no argument contains.
    let quoted = |word: &str| shlex::try_quote(word).map_or_else(|_| word.into(), String::from);
    let home = home.trim_end_matches('/');
    let rest = word.strip_prefix(home).and_then(|rest| rest.strip_prefix('/'));
    match rest.filter(|rest| !rest.is_empty() && !home.is_empty() && quoted(home) == home) {
        Some(rest) => format!("{home}/{}", quoted(rest)),
        None => quoted(word),
    }
}

/// The folder of the runtime in the build commands of C programs, if the runtime's file is not known.
const DEFAULT_FOLDER: &str = "/opt/rocm/lib";

/// Changes the build command at the start of a C program: replaces the file name `default_name` by that of `source`,
/// and [`DEFAULT_FOLDER`] by the folder of the runtime's `library`.
pub fn with_build_command(
    program: &str,
    default_name: &str,
    source: &Path,
    library: Option<&Path>,
) -> String {
    let folder = library.and_then(Path::parent).map(|folder| folder.display().to_string());
    // The command is in a comment, which `*/` would end.
    let folder = folder.filter(|folder| !folder.is_empty() && !folder.contains("*/"));
    let folder = folder.unwrap_or_else(|| DEFAULT_FOLDER.to_owned());
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The second occurrence is in the sentence about `LD_LIBRARY_PATH`.
    let program = program.replacen(DEFAULT_FOLDER, &quoted(&[folder]), 2);
    program.replacen(&format!(" {default_name} "), &format!(" {} ", quoted(&[name])), 1)
}

#[cfg(test)]
mod tests {
    use super::{quoted, quoted_word, replace_folder, with_build_command, without_options};
    use std::path::Path;

    #[test]
    fn folder_that_needs_quotes_is_removed() {
        for folder in ["./b#1", "./c d", "/home/jürgen", "target/debug"] {
            let program = format!("{folder}/hsa-vmm");
            let typed = quoted(std::slice::from_ref(&program));
            let line = format!("{typed} emulate -- {typed} conform --filter '{program}s'");
            let expected = format!("hsa-vmm emulate -- hsa-vmm conform --filter '{program}s'");
            assert_eq!(replace_folder(&line, &program), expected);
        }
    }

    #[test]
    fn home_folder_is_not_quoted() {
        for (word, expected) in [
            ("/home/a/my bin/hsa-vmm", "/home/a/'my bin/hsa-vmm'"),
            ("/home/a/O'B/x", "/home/a/\"O'B/x\""),
            ("/home/a/bin", "/home/a/bin"),
            ("/home/a b/c", "'/home/a b/c'"),
            ("/home/ab/c d", "'/home/ab/c d'"),
            ("x y", "'x y'"),
        ] {
            assert_eq!(quoted_word(word, "/home/a/"), expected);
        }
        assert_eq!(quoted_word("/home/a b/c", "/home/a b"), "'/home/a b/c'");
        assert_eq!(quoted_word("/a b", "/"), "'/a b'");
    }

    #[test]
    fn build_command_quotes_file_and_folder() {
        let text = "cc -o x x.c -L/opt/rocm/lib -lx; LD_LIBRARY_PATH=/opt/rocm/lib";
        for (library, folder) in [
            (Some("/srv/my rocr/x.so"), "'/srv/my rocr'"),
            (Some("/srv/it's/x.so"), "\"/srv/it's\""),
            (Some("/srv/a*/x/x.so"), "/opt/rocm/lib"),
            (Some("x.so"), "/opt/rocm/lib"),
            (None, "/opt/rocm/lib"),
        ] {
            let (source, library) = (Path::new("/a/b c.c"), library.map(Path::new));
            let filled = with_build_command(text, "x.c", source, library);
            let expected = format!("cc -o x 'b c.c' -L{folder} -lx; LD_LIBRARY_PATH={folder}");
            assert_eq!(filled, expected);
        }
    }

    #[test]
    fn settings_without_an_option_are_kept() {
        let value = "tlb=on,gpus=2,profile=apu";
        assert_eq!(without_options(value, "emulate --gpus 2"), "tlb=on,profile=apu");
        assert_eq!(without_options(value, "emulate --gpus 2 --machine apu"), "tlb=on");
        assert_eq!(without_options(value, ""), value);
    }
}

//! The peer process: executes the requests of its parent.

use super::{Reply, Request, gpu_access, stop};
use crate::worker::{NotAWorker, connect_to_parent};
use hsa_vmm::{Error, ErrorKind, Ipc, PoolMemory, Runtime};

/// Runs the second process of a case ([`Options::peer`](crate::Options::peer)). Returns when the parent has requested
/// to stop the runtime, sends no more requests, or has exited.
///
/// `open` returns the runtime, or the reason why the runtime did not start. If the runtime did not start, `serve` sends
/// the reason to the parent and returns.
///
/// # Errors
/// [`NotAWorker`] if this process was not started as a worker, or if the connection to the parent fails.
pub fn serve(open: impl FnOnce() -> Result<Runtime, String>) -> Result<(), NotAWorker> {
    let (mut requests, replies) = connect_to_parent()?;
    let runtime = match open() {
        Ok(runtime) => runtime,
        Err(why) => return Ok(replies.send(&Reply::Failed(why))?),
    };
    replies.send(&Reply::Started)?;
    let mut memory = None;
    while let Some(request) = requests.receive()? {
        if matches!(request, Request::Stop) {
            drop(memory);
            return Ok(replies.send(&stop::perform(runtime).unwrap_or_else(|reply| reply))?);
        }
        let reply = execute(&runtime, &mut memory, request).unwrap_or_else(|reply| reply);
        replies.send(&reply)?;
    }
    Ok(())
}

impl From<Error> for Reply {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Returns the reply to an export that failed.
fn not_exported(error: Error) -> Reply {
    match error.kind() {
        ErrorKind::NotShared { .. } | ErrorKind::NotSupported(_) => {
            Reply::NotShared(error.to_string())
        }
        _ => error.into(),
    }
}

fn execute(
    runtime: &Runtime,
    memory: &mut Option<PoolMemory>,
    request: Request,
) -> Result<Reply, Reply> {
    let no_memory = || Reply::Failed("no memory was exported".to_owned());
    match request {
        Request::Export { size, text } => {
            let no_gpu = || Reply::Failed("the runtime has no GPU".to_owned());
            let gpu = runtime.gpus().next().ok_or_else(no_gpu)?.id();
            let allocated = PoolMemory::allocate(runtime, gpu, size)?;
            allocated.write(0, text.as_bytes())?;
            let export = || Ipc::on(runtime, gpu)?.get_mem_handle(allocated.address());
            let handle = export().map_err(not_exported)?;
            *memory = Some(allocated);
            Ok(Reply::Exported(handle.to_bytes().to_vec()))
        }
        Request::Read { count } => {
            let mut bytes = vec![0; count];
            memory.as_ref().ok_or_else(no_memory)?.read(0, &mut bytes)?;
            Ok(Reply::Bytes(bytes))
        }
        Request::Access(access) => gpu_access::perform(runtime, &access),
        Request::Stop => Err(Reply::Failed("the runtime is in use".to_owned())),
        Request::Free => {
            memory.take().ok_or_else(no_memory)?.free().map_err(|rejected| rejected.error)?;
            Ok(Reply::Freed)
        }
    }
}

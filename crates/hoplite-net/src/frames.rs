//! Reads and writes exactly one frame on a stream, because raw bytes may follow it.

use std::io;

use bytes::BytesMut;
use hoplite_wire::{body_bytes, decode, encode, WireError, FRAME_HEADER_BYTES};
use minicbor::{Decode, Encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longer than any hello. A caller that has not identified itself gets no more memory.
pub const HELLO_BYTES_MAX: usize = 1 << 10;

/// The reason why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection ended between two frames: the regular end.
    #[error("the connection was closed")]
    Closed,
    /// The first frame of a connection is too long for a hello.
    #[error("a first frame of {bytes} bytes, at most {HELLO_BYTES_MAX} are allowed")]
    LongHello { bytes: usize },
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads one frame and decodes it.
///
/// # Errors
/// See [`FrameError`]. After any of them the stream cannot be used any more. Not cancel-safe.
pub async fn read_frame<T>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, FrameError>
where
    T: for<'b> Decode<'b, ()>,
{
    let bytes = read_length(stream).await?;
    read_body(stream, bytes).await
}

/// As [`read_frame`], for the first frame of a connection.
///
/// # Errors
/// See [`FrameError`]. Not cancel-safe.
pub async fn read_hello<T>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, FrameError>
where
    T: for<'b> Decode<'b, ()>,
{
    let bytes = read_length(stream).await?;
    if bytes > HELLO_BYTES_MAX {
        return Err(FrameError::LongHello { bytes });
    }
    read_body(stream, bytes).await
}

async fn read_length(stream: &mut (impl AsyncRead + Unpin)) -> Result<usize, FrameError> {
    let mut header = [0; FRAME_HEADER_BYTES];
    let first = stream.read(&mut header).await?;
    if first == 0 {
        return Err(FrameError::Closed);
    }
    stream.read_exact(&mut header[first..]).await?;
    Ok(body_bytes(header)?)
}

async fn read_body<T>(stream: &mut (impl AsyncRead + Unpin), bytes: usize) -> Result<T, FrameError>
where
    T: for<'b> Decode<'b, ()>,
{
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).await?;
    Ok(decode(&body)?)
}

/// Writes `value` as one frame.
///
/// # Errors
/// The stream's error.
pub async fn write_frame<T: Encode<()>>(stream: &mut (impl AsyncWrite + Unpin), value: &T) -> io::Result<()> {
    let mut frame = BytesMut::new();
    encode(value, &mut frame);
    stream.write_all(&frame).await
}

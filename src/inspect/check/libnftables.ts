import { oneLine } from '../../base/text.ts'

const LIBRARY = 'nftables'
/** The soname has not changed since nft 0.9. */
const PATH = 'libnftables.so.1'

/**
 * Runs commands of the nft language through libnftables, one at a time, and gives the output of nft. Undefined if this
 * machine has no libnftables, or Node has no FFI. Throws nft's message if nft rejects a command.
 * Use it only in short-lived commands: the library may abort the process.
 */
export async function runNft(commands: readonly string[]): Promise<string | undefined> {
  const ffi = await import('ffi-rs').catch(() => undefined)
  if (ffi === undefined) return undefined
  try {
    ffi.open({ library: LIBRARY, path: PATH })
  } catch {
    return undefined
  }
  try {
    return callNft(ffi, commands)
  } finally {
    ffi.close(LIBRARY)
  }
}

type Ffi = typeof import('ffi-rs')
type Pointer = ReturnType<Ffi['wrapPointer']>[number]

function callNft(ffi: Ffi, commands: readonly string[]): string {
  const { External, I32, U32, Void, String: Text } = ffi.DataType
  const pointerFrom = (funcName: string, context: Pointer): Pointer =>
    ffi.load({
      library: LIBRARY,
      funcName,
      retType: External,
      paramsType: [External],
      paramsValue: [context],
    })
  const numberFrom = (funcName: string, context: Pointer): number =>
    ffi.load({ library: LIBRARY, funcName, retType: I32, paramsType: [External], paramsValue: [context] })
  const textFrom = (funcName: string, context: Pointer): string => {
    const pointer = pointerFrom(funcName, context)
    // A null pointer that is read as a string would crash the process.
    if (ffi.isNullPointer(pointer)) return ''
    const [text] = ffi.restorePointer({ retType: [Text], paramsValue: ffi.wrapPointer([pointer]) })
    return String(text)
  }
  const context = ffi.load({
    library: LIBRARY,
    funcName: 'nft_ctx_new',
    retType: External,
    paramsType: [U32],
    paramsValue: [0],
  })
  if (ffi.isNullPointer(context)) throw new Error('libnftables: no context')
  const runOne = (command: string): string => {
    const status = ffi.load({
      library: LIBRARY,
      funcName: 'nft_run_cmd_from_buffer',
      retType: I32,
      paramsType: [External, Text],
      paramsValue: [context, command],
    })
    if (status !== 0)
      throw new Error(`libnftables: ${oneLine(textFrom('nft_ctx_get_error_buffer', context).trim())}`)
    return textFrom('nft_ctx_get_output_buffer', context)
  }
  try {
    numberFrom('nft_ctx_buffer_output', context)
    numberFrom('nft_ctx_buffer_error', context)
    // Commands run one at a time: nft 1.0.6 searches the objects of several listings in the family of the last.
    return commands.map(runOne).join('')
  } finally {
    ffi.load({
      library: LIBRARY,
      funcName: 'nft_ctx_free',
      retType: Void,
      paramsType: [External],
      paramsValue: [context],
    })
  }
}

/** The unit of a tar file, bytes. */
const BLOCK = 512
const NAME_MAX = 100
const PREFIX_MAX = 155

interface TarHead {
  readonly kind: 'file' | 'link' | 'folder'
  /** The path has no slash before or behind it. */
  readonly path: string
  readonly mode: number
  /** Bytes of a file; 0 for the others. */
  readonly size: number
  readonly target?: string | undefined
}

const KINDS: Readonly<Record<TarHead['kind'], string>> = { file: '0', link: '2', folder: '5' }

/** Offsets and lengths of the fields of a POSIX header (ustar) that kprobe writes. */
const NAME = [0, NAME_MAX] as const
const MODE = [100, 8] as const
const OWNER = [108, 8] as const
const GROUP = [116, 8] as const
const SIZE = [124, 12] as const
const TIME = [136, 12] as const
const SUM = [148, 8] as const
const KIND = [156, 1] as const
const TARGET = [157, 100] as const
const MAGIC = [257, 8] as const
const PREFIX = [345, PREFIX_MAX] as const

type FieldPlace = readonly [offset: number, length: number]

/** Encodes a POSIX header (ustar) with owner root and time 0: equal entries give equal bytes. Throws for a path that does not fit. */
export function tarHeader({ kind, path, mode, size, target = '' }: TarHead): Buffer {
  const header = Buffer.alloc(BLOCK)
  const put = ([offset]: FieldPlace, text: string) => header.write(text, offset, 'latin1')
  const octal = (field: FieldPlace, value: number) =>
    put(field, value.toString(8).padStart(field[1] - 1, '0'))
  const { name, prefix } = splitName(kind === 'folder' ? `${path}/` : path)
  put(NAME, name)
  octal(MODE, mode)
  octal(OWNER, 0)
  octal(GROUP, 0)
  octal(SIZE, size)
  octal(TIME, 0)
  put(KIND, KINDS[kind])
  put(TARGET, target)
  put(MAGIC, 'ustar\x0000')
  put(PREFIX, prefix)
  put(SUM, `${sumOf(header).toString(8).padStart(6, '0')}\0 `)
  return header
}

function splitName(path: string): { readonly name: string; readonly prefix: string } {
  if (path.length <= NAME_MAX) return { name: path, prefix: '' }
  const slash = path.indexOf('/', path.length - NAME_MAX - 1)
  if (slash < 0 || slash > PREFIX_MAX) throw new Error(`too long for a tar file: ${path}`)
  return { name: path.slice(slash + 1), prefix: path.slice(0, slash) }
}

/** Adds up the bytes of a header, with blanks in the place of the sum. */
function sumOf(header: Uint8Array): number {
  const [from, length] = SUM
  return header.reduce((sum, byte, at) => sum + (at >= from && at < from + length ? 0x20 : byte), 0)
}

/** Gives the zeros that follow the content of a file of this size. */
export function tarPadding(size: number): Buffer {
  return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK)
}

export function tarEnd(): Buffer {
  return Buffer.alloc(2 * BLOCK)
}

/** The unit of a tar file, bytes. */
const BLOCK = 512

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
const FIELDS = {
  name: [0, 100],
  mode: [100, 8],
  owner: [108, 8],
  group: [116, 8],
  size: [124, 12],
  time: [136, 12],
  sum: [148, 8],
  kind: [156, 1],
  target: [157, 100],
  magic: [257, 8],
  prefix: [345, 155],
} as const
type Field = keyof typeof FIELDS

/** Encodes a POSIX header (ustar) with owner root and time 0: equal entries give equal bytes. Throws for a path that does not fit. */
export function tarHeader({ kind, path, mode, size, target = '' }: TarHead): Buffer {
  const header = Buffer.alloc(BLOCK)
  const put = (field: Field, text: string) => header.write(text, FIELDS[field][0], 'latin1')
  const octal = (field: Field, value: number) =>
    put(field, value.toString(8).padStart(FIELDS[field][1] - 1, '0'))
  const { name, prefix } = splitName(kind === 'folder' ? `${path}/` : path)
  put('name', name)
  octal('mode', mode)
  octal('owner', 0)
  octal('group', 0)
  octal('size', size)
  octal('time', 0)
  put('kind', KINDS[kind])
  put('target', target)
  put('magic', 'ustar\x0000')
  put('prefix', prefix)
  put('sum', `${sumOf(header).toString(8).padStart(6, '0')}\0 `)
  return header
}

function splitName(path: string): { readonly name: string; readonly prefix: string } {
  const [[, nameMax], [, prefixMax]] = [FIELDS.name, FIELDS.prefix]
  if (path.length <= nameMax) return { name: path, prefix: '' }
  const slash = path.indexOf('/', path.length - nameMax - 1)
  if (slash < 0 || slash > prefixMax) throw new Error(`too long for a tar file: ${path}`)
  return { name: path.slice(slash + 1), prefix: path.slice(0, slash) }
}

/** Adds up the bytes of a header, with blanks in the place of the sum. */
function sumOf(header: Uint8Array): number {
  const [from, length] = FIELDS.sum
  return header.reduce((sum, byte, at) => sum + (at >= from && at < from + length ? 0x20 : byte), 0)
}

/** Gives the zeros that follow the content of a file of this size. */
export function tarPadding(size: number): Buffer {
  return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK)
}

export function tarEnd(): Buffer {
  return Buffer.alloc(2 * BLOCK)
}

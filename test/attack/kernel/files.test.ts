import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { FileSite } from '../../faults/file-site.ts'
import { frontendNames } from '../../faults/kernel.ts'
import { nameOf, service } from '../../faults/objects.ts'
import { COMMAND, type Daemon } from '../../support/daemon.ts'
import { eventually } from '../../support/patience.ts'
import { IS_LONG, many, Tally } from '../attack.ts'

const site = FileSite.ofEachTest()
/** Mounts of the current test. */
const mounts: string[] = []

beforeEach(() => execFileSync('ip', ['link', 'set', 'lo', 'up']))

afterEach(() => {
  for (const place of mounts.splice(0)) execFileSync('umount', ['--lazy', place])
})

/** A file system of its own in memory, which ends with the test; the options are those of tmpfs. */
function mounted(options: string): string {
  const place = join(site.folder, 'tiny')
  mkdirSync(place)
  execFileSync('mount', ['-t', 'tmpfs', '-o', options, 'tmpfs', place])
  mounts.push(place)
  return place
}

/** Takes all room that is left. */
function fill(place: string): void {
  try {
    writeFileSync(join(place, 'filler'), Buffer.alloc(64 * 1024))
  } catch {
    // That is how one knows.
  }
}

interface Written {
  readonly code: number | null
  readonly err: string
}

/** More than one page of memory, which is what a file of tmpfs takes at least. */
const MANY_CIDRS = Array.from({ length: 400 }, (_, index) => `10.${index >> 8}.${index & 255}.0/24`).join()

function writeConfigTo(path: string): Written {
  const flags = ['--logging-format=json', `--nodeport-addresses=${MANY_CIDRS}`, `--write-config-to=${path}`]
  const { status, stderr } = spawnSync(process.execPath, [COMMAND, 'run', ...flags], { encoding: 'utf8' })
  return { code: status, err: stderr }
}

describe('--write-config-to', () => {
  it('F147: says ENOSPC and the path on a full disk, and leaves no part of a file', ({ task }) => {
    const place = mounted('size=4k')
    fill(place)
    const path = join(place, 'config.yaml')
    const { code, err } = writeConfigTo(path)
    expect({ code, err }).toMatchObject({ code: 1, err: expect.stringContaining('ENOSPC') })
    expect(err).toContain(path)
    expect(readdirSync(place)).toEqual(['filler'])
    new Tally(task).add('files', 1)
  })

  it('F147: leaves the file that was there as it was, when the disk is full', ({ task }) => {
    const place = mounted('size=8k')
    const path = join(place, 'config.yaml')
    writeFileSync(path, '# the last good one\n')
    fill(place)
    expect(writeConfigTo(path).err).toContain('ENOSPC')
    expect(readFileSync(path, 'utf8')).toBe('# the last good one\n')
    new Tally(task).add('files', 1)
  })

  it.for([
    ['a folder', 'EISDIR', (place: string) => place],
    ['below a file', 'ENOTDIR', (place: string) => join(place, 'file', 'config.yaml')],
    ['in no folder', 'ENOENT', (place: string) => join(place, 'none', 'config.yaml')],
    ['with a name that is too long', 'ENAMETOOLONG', (place: string) => join(place, 'x'.repeat(300))],
  ] as const)('F147: refuses a place that is %s', ([, reason, pathIn], { task }) => {
    writeFileSync(join(site.folder, 'file'), '')
    const path = pathIn(site.folder)
    const { code, err } = writeConfigTo(path)
    expect(code).toBe(1)
    expect(err).toContain(reason)
    expect(err).toContain(path)
    new Tally(task).add('files', 1)
  })

  it('F147: says EROFS and the path in a folder that cannot be written', ({ task }) => {
    const path = join(mounted('ro'), 'config.yaml')
    expect(writeConfigTo(path)).toMatchObject({ code: 1, err: expect.stringContaining('EROFS') })
    expect(writeConfigTo(path).err).toContain(path)
    new Tally(task).add('files', 1)
  })
})

/** A place at which no socket can be made, and how that is mended. */
interface BadPlace {
  readonly what: string
  readonly prepare: () => string
  /** Part of the reason. */
  readonly reason: string
  readonly mend?: (path: string) => void
}

const BAD_PLACES: readonly BadPlace[] = [
  {
    what: 'on a full disk',
    prepare: () => join(mounted('size=4k,nr_inodes=2'), 's'),
    reason: 'ENOSPC',
    mend: path => execFileSync('mount', ['-o', 'remount,nr_inodes=20', dirname(path)]),
  },
  {
    what: 'on a disk that cannot be written',
    prepare: () => join(mounted('ro'), 's'),
    reason: 'EROFS',
    mend: path => execFileSync('mount', ['-o', 'remount,rw', dirname(path)]),
  },
  {
    what: 'where a folder is',
    prepare: () => {
      mkdirSync(join(site.folder, 's'))
      return join(site.folder, 's')
    },
    reason: 'a file that is not a socket has this path',
    mend: path => rmSync(path, { recursive: true }),
  },
  {
    what: 'where a symbolic link to a file of others is',
    prepare: () => {
      writeFileSync(join(site.folder, 'theirs'), 'theirs')
      symlinkSync(join(site.folder, 'theirs'), join(site.folder, 's'))
      return join(site.folder, 's')
    },
    reason: 'a file that is not a socket has this path',
    mend: path => {
      expect(readFileSync(join(site.folder, 'theirs'), 'utf8')).toBe('theirs')
      rmSync(path)
    },
  },
  {
    what: 'below a file',
    prepare: () => {
      writeFileSync(join(site.folder, 'file'), '')
      return join(site.folder, 'file', 's')
    },
    reason: 'ENOTDIR',
  },
  {
    what: 'in a folder with a path that leaves no room for a temporary name',
    prepare: () => {
      const place = join(site.folder, 'd'.repeat(104 - site.folder.length))
      mkdirSync(place)
      return join(place, 's')
    },
    reason: 'too long',
  },
]

const NAMED = BAD_PLACES.map(place => [place.what, place] as const)

/** Objects of one Service in a folder, for --source. */
function objects(): string {
  const place = join(site.folder, 'objects')
  mkdirSync(place)
  for (const [index, object] of service(1).entries())
    writeFileSync(join(place, `${index}.json`), JSON.stringify(object))
  return place
}

/** Another Service comes, and the daemon follows. */
async function keepsUp(source: string): Promise<void> {
  for (const [index, object] of service(2).entries())
    writeFileSync(join(source, `more-${index}.json`), JSON.stringify(object))
  await eventually(() => frontendNames().has(nameOf(2)))
}

describe('the admin socket', () => {
  it.for(NAMED)('F147: %s: the log names path and reason, Services are served', async ([, bad], { task }) => {
    const path = bad.prepare()
    const source = objects()
    const daemon: Daemon = site.daemons.start({ source, args: [`--admin-socket=${path}`] })
    await daemon.synced()
    const [line] = await daemon.logged('admin: cannot listen')
    expect(JSON.stringify(line)).toContain(bad.reason)
    expect(line?.msg).toContain(path)
    await keepsUp(source)
    new Tally(task).add('sockets', 1)
    if (bad.mend === undefined || (!IS_LONG && bad !== BAD_PLACES[0])) return
    bad.mend(path)
    await daemon.logged('admin: listening')
    expect(readdirSync(dirname(path)).filter(name => name.startsWith('.k'))).toEqual([])
    expect((await daemon.stop()).code).toBe(0)
    expect(existsSync(path)).toBe(false)
  })
})

describe('the socket of the back-end API', () => {
  // A path that is too long is refused when the flags are read.
  it.for(NAMED.slice(0, many(1, NAMED.length - 1)))(
    'F147: %s: the daemon says path and reason',
    async ([, bad], { task }) => {
      const path = bad.prepare()
      const daemon = site.daemons.start({ source: objects(), args: [`--api=unix://${path}`] })
      const { code } = await daemon.ended()
      const said = JSON.stringify([daemon.records, daemon.strayLines])
      expect({ code, said }).toMatchObject({ code: 1, said: expect.stringContaining(bad.reason) })
      expect(said).toContain(path)
      new Tally(task).add('sockets', 1)
    },
  )
})

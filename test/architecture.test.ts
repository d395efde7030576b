import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { folderCircleComplaints, openDoorComplaints, wallComplaints } from './support/folder-rules.ts'
import { KeptFacts } from './support/kept-facts.ts'
import { IS_QUICK } from './support/runs.ts'
import {
  castComplaints,
  circleComplaints,
  exitComplaints,
  importComplaints,
  lineCount,
  loadingComplaints,
  modeNameComplaints,
  moduleStateComplaints,
  NATIVE_LINES_MAX,
  nameComplaints,
  type SourceFile,
  sizeComplaints,
  sourceFile,
  unfinishedComplaints,
} from './support/source-rules.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))

const textOf = (path: string): string => readFileSync(`${ROOT}${path}`, 'utf8')

/** In `npm run ok`, a file that is as it was in the run before is not parsed again. */
const kept = IS_QUICK ? keptFacts() : undefined

function keptFacts(): KeptFacts {
  // The lock file names the version of the parser.
  const reader = ['test/support/source-facts.ts', 'package-lock.json'].map(textOf).join('')
  return new KeptFacts(`${ROOT}.cache/source-facts.json`, reader)
}

function filesUnder(folder: string, extensions: RegExp): SourceFile[] {
  return readdirSync(`${ROOT}${folder}`, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile() && extensions.test(entry.name))
    .map(entry => `${entry.parentPath}/${entry.name}`.slice(ROOT.length))
    .sort()
    .map(path => sourceFile(path, textOf(path), kept && ((text, hasJsx) => kept.of(text, hasJsx))))
}

const src = filesUnder('src', /\.tsx?$/)
const native = filesUnder('native', /\.[ch]$/)
const tests = filesUnder('test', /\.(ts|mjs|c)$/)
const every = [...src, ...native, ...tests]
kept?.save()

/** The rules themselves spell out what they look for. */
const quotesTheRules = (file: SourceFile): boolean =>
  /(source|folder)-(rules|facts)|architecture/.test(file.path)

describe('the sources', () => {
  it('import only in the directions of the architecture, types included, and start no process', () => {
    expect(src.length).toBeGreaterThan(20)
    expect(src.flatMap(importComplaints)).toEqual([])
  })

  it('ask the registry about modes, and name none', () => {
    expect(src.flatMap(modeNameComplaints)).toEqual([])
  })

  it('import each other without a circle, types included', () => {
    expect(circleComplaints(src)).toEqual([])
  })

  it('of the daemon import no wing, types included', () => {
    expect(src.flatMap(wallComplaints)).toEqual([])
  })

  it('load no wing before it is asked for', () => {
    expect(src.flatMap(openDoorComplaints)).toEqual([])
  })

  it('stand in folders that import each other without a circle, types included', () => {
    expect(folderCircleComplaints(src)).toEqual([])
  })

  it('stay within 450 lines a file and 60 lines a function', () => {
    expect(every.flatMap(sizeComplaints)).toEqual([])
  })

  it('keep C to 500 lines in all', () => {
    expect(native.reduce((sum, file) => sum + lineCount(file.text), 0)).toBeLessThanOrEqual(NATIVE_LINES_MAX)
  })

  it('hold no state in a module', () => {
    expect(src.flatMap(moduleStateComplaints)).toEqual([])
  })

  it('end the process in main.ts alone', () => {
    expect(src.flatMap(exitComplaints)).toEqual([])
  })

  it('load modules by imports that can be read, the addon aside', () => {
    expect(src.flatMap(loadingComplaints)).toEqual([])
  })

  it('cast nowhere but in the codec', () => {
    expect(src.flatMap(castComplaints)).toEqual([])
  })

  it('leave nothing for later', () => {
    expect(every.filter(file => !quotesTheRules(file)).flatMap(unfinishedComplaints)).toEqual([])
  })

  it('name who acts: a caller, a client, a reader', () => {
    const found = src.flatMap(({ path, text }) =>
      (text.match(/\b(?:nobody|somebody|who(?:so)?ever|whom)\b/gi) ?? []).map(word => `${path}: ${word}`),
    )
    expect(found).toEqual([])
  })

  it('are named in one way', () => {
    expect(every.flatMap(file => nameComplaints(file.path))).toEqual([])
  })
})

interface LockedPackage {
  readonly dev?: boolean
  readonly hasInstallScript?: boolean
  readonly resolved?: string
}

interface Lock {
  readonly packages: Readonly<Record<string, LockedPackage>>
}

function readJson<T>(path: string): T {
  return JSON.parse(readFileSync(`${ROOT}${path}`, 'utf8'))
}

describe('the dependencies', () => {
  const packages = Object.entries(readJson<Lock>('package-lock.json').packages)

  it('are pinned to one version each', () => {
    type Versions = Readonly<Record<string, string>>
    const kinds = ['dependencies', 'optionalDependencies', 'devDependencies'] as const
    const manifest = readJson<Partial<Record<(typeof kinds)[number], Versions>>>('package.json')
    const versions = kinds.flatMap(kind => Object.entries(manifest[kind] ?? {}))
    expect(versions.length).toBeGreaterThan(5)
    expect(versions.filter(([, version]) => !/^\d+\.\d+\.\d+$/.test(version))).toEqual([])
  })

  it('come from whichever registry is configured: no host is written down', () => {
    expect(packages.filter(([, locked]) => locked.resolved !== undefined)).toEqual([])
    for (const path of [
      'package.json',
      'package-lock.json',
      '.npmrc',
      '.ci/run',
      'deploy/prepare.sh',
      'test/run.sh',
    ])
      expect(readFileSync(`${ROOT}${path}`, 'utf8'), path).not.toMatch(/registry\.|registry\s*=/)
  })

  it('run nothing when they are installed for use', () => {
    expect(packages.filter(([, locked]) => locked.hasInstallScript === true && locked.dev !== true)).toEqual(
      [],
    )
  })
})

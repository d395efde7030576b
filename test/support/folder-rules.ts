import { circlesIn, DAEMON_HALF, localImports, type SourceFile } from './source-rules.ts'

/**
 * Every circle of folders, type imports included: of those of src/, and of those beside each other in a folder. Files
 * that stand in the folder itself are its door: they may know what is inside it, and what is inside may know them.
 */
export function folderCircleComplaints(files: readonly SourceFile[]): string[] {
  const parents = new Set(files.map(({ path }) => parentOf(parentOf(path))).filter(path => path !== ''))
  return [...parents].sort().flatMap(parent => circlesIn(edgesBelow(parent, files)))
}

const WINGS: readonly string[] = ['inspect', 'proof', 'api', 'relay', 'ui', 'library']

/** The files that lead to the wings. */
const DOORS: readonly string[] = ['src/optional-parts.ts', 'src/commands.ts', 'src/main.ts']

/** Wings that are loaded at the start of every command: a door opens by import(), when somebody asks for what is behind. */
export function openDoorComplaints({ path, loadedImports }: SourceFile): string[] {
  if (!DOORS.includes(path)) return []
  return loadedImports
    .filter(module => WINGS.some(wing => module.startsWith(`./${wing}/`)))
    .map(module => `${path}: loads ${module} at each start: write import()`)
}

/** Wings that a file of the daemon's half, or of its commands, imports: only src/optional-parts.ts leads to them. */
export function wallComplaints(file: SourceFile): string[] {
  const [, part = ''] = file.path.split('/')
  if (!DAEMON_HALF.includes(part) && part !== 'cli') return []
  return localImports(file)
    .filter(path => WINGS.includes(path.split('/')[1] ?? ''))
    .map(path => `${file.path}: imports ${path}: only src/optional-parts.ts and src/commands.ts may`)
}

/** What the folders of `parent` import of each other. Files of src/ itself count as folders. */
function edgesBelow(parent: string, files: readonly SourceFile[]): ReadonlyMap<string, readonly string[]> {
  const roomOf = (path: string): string | undefined => {
    if (!path.startsWith(`${parent}/`)) return undefined
    const [first = '', ...rest] = path.slice(parent.length + 1).split('/')
    return rest.length > 0 || parent === 'src' ? `${parent}/${first}` : undefined
  }
  const edges = new Map<string, Set<string>>()
  for (const file of files) {
    const from = roomOf(file.path)
    if (from === undefined) continue
    const found = edges.get(from) ?? new Set<string>()
    edges.set(from, found)
    for (const path of localImports(file)) {
      const to = roomOf(path)
      if (to !== undefined && to !== from) found.add(to)
    }
  }
  return new Map([...edges].map(([from, to]) => [from, [...to].sort()]))
}

function parentOf(path: string): string {
  return path.includes('/') ? path.slice(0, path.lastIndexOf('/')) : ''
}

/** What one side of the map has: as high as its connections, at the place of its centre. */
export interface MapNode {
  readonly name: string
  readonly connections: number
  readonly y: number
  readonly height: number
  /** Names that this node stands for, where they are too many to draw. */
  readonly others: number
}

export interface MapLink {
  readonly from: MapNode
  readonly to: MapNode
  readonly connections: number
  /** Where it leaves and enters: the centre of its share of the node. */
  readonly fromY: number
  readonly toY: number
  readonly width: number
}

interface Talk {
  readonly from: string
  readonly to: string
  readonly connections: number
}

/** A node is at least as high as its name, so that every one can be read. */
const ROW = 22
const GAP = 6

/** Lays talks out from left to right; the smallest of more than `rowsMax` names of a side are one node. Pure. */
export function mapLayout(talks: readonly Talk[], rowsMax: number) {
  const [lefts, rights] = [sideOf(talks, ({ from }) => from, rowsMax), sideOf(talks, ({ to }) => to, rowsMax)]
  const sums = new Map<string, { from: MapNode; to: MapNode; connections: number }>()
  for (const { from, to, connections } of talks) {
    const [left, right] = [lefts.nodeOf(from), rights.nodeOf(to)]
    if (left === undefined || right === undefined) continue
    const key = `${left.y} ${right.y}`
    const sum = sums.get(key) ?? { from: left, to: right, connections: 0 }
    sum.connections += connections
    sums.set(key, sum)
  }
  const sorted = [...sums.values()].sort((a, b) => a.from.y - b.from.y || a.to.y - b.to.y)
  const used = new Map<MapNode, number>()
  const take = (node: MapNode, connections: number) => {
    const [start, width] = [used.get(node) ?? 0, (connections / node.connections) * (node.height - 4)]
    used.set(node, start + width)
    return { y: node.y + 2 + start + width / 2, width }
  }
  const links = sorted.map(({ from, to, connections }): MapLink => {
    const [left, right] = [take(from, connections), take(to, connections)]
    const width = Math.max(1, Math.min(left.width, right.width))
    return { from, to, connections, fromY: left.y, toY: right.y, width }
  })
  return { left: lefts.nodes, right: rights.nodes, links, height: Math.max(lefts.height, rights.height) }
}

function sideOf(talks: readonly Talk[], nameOf: (talk: Talk) => string, rowsMax: number) {
  const sums = new Map<string, number>()
  for (const talk of talks) sums.set(nameOf(talk), (sums.get(nameOf(talk)) ?? 0) + talk.connections)
  const sorted = [...sums].sort(([, a], [, b]) => b - a)
  const [own, rest] =
    sorted.length <= rowsMax ? [sorted, []] : [sorted.slice(0, rowsMax - 1), sorted.slice(rowsMax - 1)]
  const total = Math.max(
    1,
    sorted.reduce((sum, [, connections]) => sum + connections, 0),
  )
  let height = 0
  const placed = (name: string, connections: number, others: number): MapNode => {
    // Room of six rows is shared by what the nodes weigh: the largest stands out, and the others fit into the window.
    const node = { name, connections, others, y: height, height: ROW + (connections / total) * ROW * 6 }
    height += node.height + GAP
    return node
  }
  const nodes = own.map(([name, connections]) => placed(name, connections, 0))
  const byName = new Map(nodes.map(node => [node.name, node]))
  if (rest.length === 0) return { nodes, nodeOf: (name: string) => byName.get(name), height }
  const sum = rest.reduce((total, [, connections]) => total + connections, 0)
  const others = placed(`${rest.length} others`, sum, rest.length)
  const nodeOf = (name: string) => byName.get(name) ?? others
  return { nodes: [...nodes, others], nodeOf, height }
}
